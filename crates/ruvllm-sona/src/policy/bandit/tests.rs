//! Bandits on drifting, noisy workloads, and the bound on what they lose.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

use super::*;

/// Steps of a workload: what the machine does at the time, and what each arm costs then.
struct World {
    rng: ChaCha8Rng,
    noise: f64,
}

impl World {
    fn unit(&mut self) -> f64 {
        f64::from(self.rng.next_u32()) / f64::from(u32::MAX)
    }

    /// Seconds of a step of one token whose cost is `cost`: drifting, noisy, now and then interrupted.
    fn step(&mut self, i: usize, cost: f64) -> f64 {
        let drift = 1.0 + 0.3 * (i as f64 / 3000.0).sin();
        let noise = (0..4).map(|_| self.unit() - 0.5).sum::<f64>() * 1.7 * self.noise;
        let pause = if self.rng.next_u32().is_multiple_of(300) { 2.0 } else { 0.0 };
        0.005 * (drift * cost * (1.0 + noise).max(0.2) + pause)
    }
}

/// Plays `n` steps; `cost` says what an arm costs in step `i`. Returns time taken over the time of the default alone, in
/// the same steps without noise, at the end and at most after the first tenth; and the arm that is chosen then.
fn play(seed: u64, noise: f64, n: usize, cost: impl Fn(usize, usize) -> f64) -> (f64, f64, usize) {
    let mut world = World { rng: ChaCha8Rng::seed_from_u64(seed), noise };
    let mut bandit = SafeBandit::new(3, BanditOptions::default());
    let (mut taken, mut default, mut worst) = (0.0, 0.0, 0.0f64);
    for i in 0..n {
        let (arm, _) = bandit.choose("c", |_| true);
        let seconds = world.step(i, cost(arm, i));
        bandit.learn("c", arm, seconds, 1.0);
        taken += cost(arm, i);
        default += cost(0, i);
        if i > n / 10 {
            worst = worst.max(taken / default);
        }
    }
    (taken / default, worst, bandit.contexts["c"].chosen)
}

#[test]
fn a_better_arm_is_found_and_the_best_of_two() {
    let mut found = [0; 3];
    for seed in 0..20 {
        let (ratio, worst, chosen) = play(seed, 0.1, 40_000, |arm, _| [1.0, 0.8, 0.6][arm]);
        assert!(worst < 1.01, "seed {seed}: {worst}");
        assert!(ratio < 0.8, "seed {seed}: {ratio}");
        found[chosen] += 1;
    }
    assert!(found[2] >= 18, "{found:?}");
}

#[test]
fn what_can_be_little_dearer_is_tried_sooner() {
    let n_until_try = |extra_cost_max: f64| {
        let mut bandit = SafeBandit::new(2, BanditOptions { extra_cost_max, ..BanditOptions::default() });
        let is_try = |_: &usize| {
            let (arm, why) = bandit.choose("c", |_| true);
            bandit.learn("c", arm, 0.005, 1.0);
            why == Why::Trying
        };
        (0..10_000).find(is_try).expect("it is tried") as f64
    };
    let ratio = n_until_try(0.6) / n_until_try(0.2);
    assert!((2.8..3.2).contains(&ratio), "{ratio}");
}

#[test]
fn worse_arms_cost_next_to_nothing() {
    for (seed, costs) in [[1.0, 1.3, 2.0], [1.0, 1.05, 5.0], [1.0, 1.0, 1.0], [1.0, 1.02, 0.99]]
        .into_iter()
        .flat_map(|costs| (0..10).map(move |seed| (seed, costs)))
    {
        for noise in [0.02, 0.1, 0.3] {
            let (ratio, worst, _) = play(seed, noise, 20_000, |arm, _| costs[arm]);
            assert!(ratio < 1.01 && worst < 1.02, "seed {seed}, {costs:?}, noise {noise}: {ratio}, {worst}");
        }
    }
}

#[test]
fn an_arm_that_turns_bad_is_given_up() {
    for seed in 0..10 {
        let cost = |arm: usize, i: usize| match (arm, i < 20_000) {
            (0, _) => 1.0,
            (1, true) => 0.7,
            _ => 1.3,
        };
        let (ratio, _, chosen) = play(seed, 0.1, 60_000, cost);
        assert!(ratio < 1.0 && chosen == 0, "seed {seed}: {ratio}, {chosen}");
    }
}

#[test]
fn what_an_earlier_process_found_is_checked() {
    let mut world = World { rng: ChaCha8Rng::seed_from_u64(1), noise: 0.1 };
    for (costs, expected) in [([1.0, 0.7], 1), ([1.0, 1.3], 0)] {
        let mut bandit = SafeBandit::new(2, BanditOptions::default());
        bandit.begin_with("c", 1);
        bandit.begin_with("c", 9);
        let mut first = Vec::new();
        for i in 0..2000 {
            let (arm, why) = bandit.choose("c", |_| true);
            if first.last() != Some(&(arm, why)) && first.len() < 3 {
                first.push((arm, why));
            }
            bandit.learn("c", arm, world.step(i, costs[arm]), 1.0);
        }
        assert_eq!(first, [(0, Why::Recheck), (1, Why::Learned), (0, Why::Recheck)]);
        assert_eq!(bandit.contexts["c"].chosen, expected);
        let changes = bandit.take_changes();
        assert_eq!(changes.iter().map(|change| change.arm).collect::<Vec<_>>(), vec![0; 1 - expected]);
    }
}

#[test]
fn contexts_are_apart_and_what_may_not_be_is_not_played() {
    let mut world = World { rng: ChaCha8Rng::seed_from_u64(2), noise: 0.05 };
    let mut bandit = SafeBandit::new(2, BanditOptions::default());
    for i in 0..10_000 {
        for (name, costs) in [("good", [1.0, 0.7]), ("bad", [1.0, 1.3])] {
            let (arm, _) = bandit.choose(name, |_| true);
            bandit.learn(name, arm, world.step(i, costs[arm]), 1.0);
        }
        assert_eq!(bandit.choose("never", |arm| arm == 0).0, 0);
    }
    assert_eq!((bandit.contexts["good"].chosen, bandit.contexts["bad"].chosen), (1, 0));
    assert!(bandit.measured("good", 1).ratio < 0.8 && bandit.measured("good", 1).confidence > 0.99);
    assert!(bandit.loss() <= 0.012, "{}", bandit.loss());
    assert_eq!(bandit.choose("good", |arm| arm == 0).0, 0);
}
