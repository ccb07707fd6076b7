//! Gradients against finite differences, update rules by hand, and what survives a snapshot.

use half::f16;
use ruvllm_kernels::Isa;

use super::toy::Squares;
use super::*;

mod basis;
mod inside;

/// A head in memory: `[n_vocab, n_embd]`.
struct Head(Vec<f32>, usize);

impl HeadRows for Head {
    fn row(&self, token: u32, out: &mut [f32]) {
        out.copy_from_slice(&self.0[token as usize * self.1..][..self.1]);
    }
}

fn noise(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 53 + seed * 17) as f32 * 0.371).sin() * 0.7).collect()
}

/// A state that nothing sits before.
fn one(hidden: &[f32]) -> StateRows<'_> {
    StateRows { hidden, stream: &[] }
}

/// A gradient of a state's factors.
fn of(a: Vec<f32>, b: Vec<f32>) -> Gradient {
    Gradient { state: Pair { a, b, turned: Vec::new() }, inside: None, weight: 1.0 }
}

/// `h + s·B·(A·h)` and the loss, in f64 by plain loops.
fn loss(a: &[f64], b: &[f64], scale: f64, hidden: &[f32], head: &Head, target: usize) -> (f64, Vec<f64>) {
    let n = hidden.len();
    let mut h: Vec<f64> = hidden.iter().map(|&x| f64::from(x)).collect();
    for (a, b) in a.chunks_exact(n).zip(b.chunks_exact(n)) {
        let t: f64 = a.iter().zip(hidden).map(|(a, &h)| a * f64::from(h)).sum();
        h.iter_mut().zip(b).for_each(|(h, b)| *h += scale * t * b);
    }
    let logits: Vec<f64> =
        head.0.chunks_exact(n).map(|w| w.iter().zip(&h).map(|(&w, h)| f64::from(w) * h).sum()).collect();
    let max = logits.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = logits.iter().map(|x| (x - max).exp()).sum();
    let p: Vec<f64> = logits.iter().map(|x| (x - max).exp() / sum).collect();
    (-p[target].ln(), p)
}

#[test]
fn gradients_are_finite_differences() {
    let (n, n_vocab, target) = (40, 60, 17);
    let (hidden, head) = (noise(n, 1), Head(noise(n_vocab * n, 2), n));
    for rank in 1..=4 {
        let mut micro = MicroLora::new(n, rank, 0.8, 5).expect("a rank");
        Arc::make_mut(&mut micro.state).b = noise(rank * n, 9).iter().map(|x| 0.1 * x).collect();
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let (a, b) = (wide(&micro.state.a), wide(&micro.state.b));
        let (_, p) = loss(&a, &b, f64::from(micro.scale), &hidden, &head, target);
        let all: Vec<(u32, f32)> = p.iter().enumerate().map(|(token, &p)| (token as u32, p as f32)).collect();
        let mut gradient = micro.gradient_buffer();
        micro.gradient(one(&hidden), &all, target as u32, &head, &mut gradient);
        let scale = f64::from(micro.scale);
        let largest = gradient.state.a.iter().chain(&gradient.state.b).fold(0.0f32, |max, x| max.max(x.abs()));
        for i in (0..rank * n).step_by(3) {
            let difference = |in_a: bool| {
                let at = |step: f64| {
                    let (mut a, mut b) = (a.clone(), b.clone());
                    (if in_a { &mut a } else { &mut b })[i] += step;
                    loss(&a, &b, scale, &hidden, &head, target).0
                };
                (at(1e-5) - at(-1e-5)) / 2e-5
            };
            for (found, expected) in [(gradient.state.a[i], difference(true)), (gradient.state.b[i], difference(false))]
            {
                let bound = 1e-3 * expected.abs().max(1e-3 * f64::from(largest));
                assert!((f64::from(found) - expected).abs() <= bound, "rank {rank}, {i}: {found} for {expected}");
            }
        }
        // The likeliest tokens give nearly all of it where the others are nearly nothing.
        let mut order = all.clone();
        order.sort_by(|x, y| y.1.total_cmp(&x.1));
        let mut sparse = micro.gradient_buffer();
        micro.gradient(one(&hidden), &order[..50], target as u32, &head, &mut sparse);
        let pairs = gradient.state.b.iter().zip(&sparse.state.b);
        let (dot, length) = pairs.fold((0.0, 0.0), |(dot, length), (x, y)| (dot + x * y, length + y * y));
        assert!(dot / (length.sqrt() * gradient.state.b.iter().map(|x| x * x).sum::<f32>().sqrt()) > 0.99);
    }
}

#[test]
fn a_centred_one_is_one_of_the_difference() {
    let (n, n_vocab) = (40, 60);
    let (hidden, centre, head) = (noise(n, 1), noise(n, 6), Head(noise(n_vocab * n, 2), n));
    let less: Vec<f32> = hidden.iter().zip(&centre).map(|(h, c)| h - c).collect();
    let mut plain = MicroLora::new(n, 2, 0.8, 5).expect("a rank");
    Arc::make_mut(&mut plain.state).b = noise(2 * n, 9);
    let centred = plain.clone().centred(&centre).expect("a centre");
    let (mut of_a, mut of_b) = (plain.gradient_buffer(), plain.gradient_buffer());
    centred.gradient(one(&hidden), &[(1, 0.5), (2, 0.25)], 9, &head, &mut of_a);
    plain.gradient(one(&less), &[(1, 0.5), (2, 0.25)], 9, &head, &mut of_b);
    let changes = change(&centred, &hidden).into_iter().zip(change(&plain, &less));
    let gradients =
        of_a.state.a.iter().chain(&of_a.state.b).zip(of_b.state.a.iter().chain(&of_b.state.b)).map(|(&a, &b)| (a, b));
    for (x, y) in changes.chain(gradients) {
        assert!((x - y).abs() < 1e-4 * (1.0 + y.abs()), "{x} for {y}");
    }
    assert_eq!(MicroLora::restore(&centred.snapshot()).expect("a snapshot"), centred);
    assert!(centred.export("micro", n_vocab, &head).is_err());
    assert!(plain.clone().blend(&centred, 0.5).is_err());
    assert!(plain.clone().centred(&centre[1..]).is_err() && plain.centred(&[f32::NAN; 40]).is_err());
}

#[test]
fn gains_are_those_of_both_distributions() {
    let (n, n_vocab, target) = (40, 60, 17);
    let (hidden, head) = (noise(n, 1), Head(noise(n_vocab * n, 2), n));
    let mut micro = MicroLora::new(n, 2, 0.8, 5).expect("a rank");
    Arc::make_mut(&mut micro.state).b = noise(2 * n, 9).iter().map(|x| 0.3 * x).collect();
    let (a, b) = (micro.state.a.clone(), micro.state.b.clone());
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let at = |strength: f64| loss(&wide(&a), &wide(&b), 0.8 * strength, &hidden, &head, target);
    let ((without, _), (with, p_with)) = (at(0.0), at(1.0));
    for strength in [0.0, 0.25, 1.0] {
        let all = at(f64::from(strength)).1;
        let mut likeliest: Vec<(u32, f32)> = all.iter().enumerate().map(|(i, &p)| (i as u32, p as f32)).collect();
        let gain = gain(&change(&micro, &hidden), &mut likeliest, strength, target as u32, &head);
        assert!((f64::from(gain) - (without - with)).abs() < 1e-4, "{gain} for {}", without - with);
        assert!(likeliest.iter().zip(&p_with).all(|(&(_, p), q)| (f64::from(p) - q).abs() < 1e-5));
    }
    let (weak, whole) = (change(&micro.weakened(0.25), &hidden), change(&micro, &hidden));
    assert!(weak.iter().zip(&whole).all(|(w, x)| (w - 0.25 * x).abs() < 1e-5));
}

#[test]
fn gradients_add_up() {
    let gradient = |x: f32, weight: f32| Gradient { weight, ..of(vec![x, 2.0], vec![0.5, -x]) };
    let mut sum = gradient(1.0, 1.0);
    sum.clear();
    assert_eq!(sum.norm(), 0.0);
    // Neighbours that stand for the least become their mean, until there are few enough.
    let mut all = vec![gradient(1.0, 2.0), gradient(4.0, 1.0), gradient(1.0, 1.0), gradient(7.0, 3.0)];
    Gradient::merge(&mut all, 3);
    assert_eq!(all, [gradient(1.0, 2.0), gradient(2.5, 2.0), gradient(7.0, 3.0)]);
    Gradient::merge(&mut all, 1);
    let expected = (2.0 * 1.0 + 2.0 * 2.5 + 3.0 * 7.0) / 7.0;
    assert!((all[0].state.a[0] - expected).abs() < 1e-6 && all[0].weight == 7.0 && all.len() == 1);
}

#[test]
fn nothing_changes_before_something_was_learned() {
    let micro = MicroLora::new(576, 2, 1.0, 3).expect("a rank");
    let hidden = noise(576, 4);
    assert_eq!(change(&micro, &hidden), [0.0; 576]);
    assert_eq!(MicroLora::new(576, 2, 1.0, 3).expect("a rank"), micro);
    assert!(MicroLora::new(576, 5, 1.0, 3).is_err() && MicroLora::new(576, 0, 1.0, 3).is_err());
    assert!(MicroLora::new(576, 1, f32::NAN, 3).is_err());
}

#[test]
fn update_rules_by_hand() {
    let run = |rule, gradients: &[f32]| {
        let mut micro = MicroLora::new(1, 1, 1.0, 0).expect("a rank");
        {
            let (a, b) = micro.factors_mut();
            (a[0], b[0]) = (2.0, 1.0);
        }
        let options = UpdateOptions { rule, rate: 0.1, clip: 100.0, decay: 0.5 };
        for &d in gradients {
            let mut gradient = of(vec![d], vec![0.0]);
            assert!(micro.update(&mut gradient, &options));
        }
        micro.state.a[0]
    };
    let near = |x: f32, y: f32| assert!((x - y).abs() < 1e-6, "{x} for {y}");
    near(run(Rule::Sgd, &[3.0]), 2.0 * 0.95 - 0.3);
    near(run(Rule::Adagrad, &[3.0, 4.0]), (2.0 * 0.95 - 0.1) * 0.95 - 0.1 * 4.0 / 5.0);
    let m = 0.9 * (0.1 * 9.0) + 0.1 * 16.0;
    near(
        run(Rule::RmsProp { decay: 0.9 }, &[3.0, 4.0]),
        (2.0 * 0.95 - 0.3 / 0.9f32.sqrt()) * 0.95 - 0.4 / f32::sqrt(m),
    );
    // Clipping keeps the direction; what is no number changes nothing.
    let mut micro = MicroLora::new(2, 1, 1.0, 0).expect("a rank");
    let before = micro.clone();
    let mut gradient = of(vec![30.0, 0.0], vec![0.0, 40.0]);
    assert!(micro.update(&mut gradient, &UpdateOptions::sgd(1.0)));
    near(before.state.a[0] - micro.state.a[0], 0.6);
    near(before.state.b[1] - micro.state.b[1], 0.8);
    let before = micro.clone();
    gradient.state.a[0] = f32::NAN;
    assert!(!micro.update(&mut gradient, &UpdateOptions::sgd(1.0)) && micro == before);
}

#[test]
fn one_begins_along_given_rows() {
    let micro = || MicroLora::new(24, 2, 1.0, 5).expect("a rank");
    let rows = noise(48, 3);
    let along = micro().along(&rows).expect("rows");
    assert_eq!((along.factors().0, along.factors().1), (&rows[..], micro().factors().1));
    assert!(micro().along(&rows[1..]).is_err() && micro().along(&[f32::NAN; 48]).is_err());
}

#[test]
fn a_snapshot_goes_on_to_the_bit_and_an_export_does_the_same() {
    let (n, n_vocab) = (24, 30);
    let (hidden, head) = (noise(n, 3), Head(noise(n_vocab * n, 8), n));
    let mut micro = MicroLora::new(n, 3, 0.5, 11).expect("a rank");
    let options = UpdateOptions { rule: Rule::Adagrad, rate: 0.05, clip: 1.0, decay: 0.01 };
    let learn = |micro: &mut MicroLora| {
        let mut gradient = micro.gradient_buffer();
        micro.gradient(one(&hidden), &[(1, 0.5), (2, 0.25)], 9, &head, &mut gradient);
        micro.update(&mut gradient, &options);
    };
    learn(&mut micro);
    let bytes = micro.snapshot();
    let mut again = MicroLora::restore(&bytes).expect("a snapshot");
    assert_eq!(again, micro);
    learn(&mut micro);
    learn(&mut again);
    assert_eq!(again, micro);
    for cut in [0, 7, 8, 39, 41, bytes.len() - 1] {
        assert!(MicroLora::restore(&bytes[..cut]).is_err(), "{cut} bytes");
    }
    assert!(MicroLora::restore(&[&bytes[..], &[0]].concat()).is_err());
    let mut wide = bytes.clone();
    wide[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(MicroLora::restore(&wide).is_err());

    let adapter = micro.export("micro", n_vocab, &head).expect("finite");
    let delta = adapter.delta("output").expect("it changes the head");
    let (a, b) = (delta.a().expect("finite"), delta.b().expect("finite"));
    let mut changed = vec![0.0; n];
    micro.forward(one(&hidden), &mut changed);
    for token in 0..n_vocab {
        let row = &head.0[token * n..(token + 1) * n];
        let base = dot(row, &hidden);
        let low: f32 = (0..3).map(|i| b[token * 3 + i] * dot(&a[i * n..(i + 1) * n], &hidden)).sum();
        assert!((base + delta.scale * low - dot(row, &changed)).abs() < 1e-5);
    }
    // An exponential mean of itself is itself; of another it is between.
    let mut blended = again.clone();
    blended.blend(&micro, 0.5).expect("the same shape");
    assert_eq!(blended, micro);
    assert!(blended.blend(&MicroLora::new(n, 2, 0.5, 1).expect("a rank"), 0.5).is_err());
}

/// What a hidden state becomes less itself.
fn change(micro: &MicroLora, hidden: &[f32]) -> Vec<f32> {
    let mut changed = vec![0.0; hidden.len()];
    micro.forward(one(hidden), &mut changed);
    changed.iter().zip(hidden).map(|(x, h)| x - h).collect()
}

#[test]
fn a_base_absorbs_and_stands_beside() {
    let n = 24;
    let learned = |seed: usize, scale: f32| {
        let micro = MicroLora::new(n, 3, scale, seed as u64).expect("a rank");
        let mut micro = micro.centred(&noise(n, 3)).expect("a centre");
        Arc::make_mut(&mut micro.state).b = noise(3 * n, seed);
        micro
    };
    let (one, two, hidden) = (learned(5, 0.8), learned(6, 0.8), noise(n, 40));
    let near = |x: &[f32], y: &[f32], bound: f32| x.iter().zip(y).all(|(x, y)| (x - y).abs() < bound);
    let sum = |x: &[f32], y: &[f32], (a, b): (f32, f32)| -> Vec<f32> {
        x.iter().zip(y).map(|(x, y)| a * x + b * y).collect()
    };
    let mut base = one.empty_base(8).expect("a rank");
    assert!(change(&base, &hidden).iter().all(|&x| x == 0.0));
    // Ranks that fit are kept exactly.
    base.absorb(1.0, &one, 0.5).expect("one width");
    assert!(near(&change(&base, &hidden), &sum(&change(&one, &hidden), &hidden, (0.5, 0.0)), 1e-5));
    base.absorb(0.5, &two, 1.0).expect("one width");
    let both = sum(&change(&one, &hidden), &change(&two, &hidden), (0.25, 1.0));
    assert!(near(&change(&base, &hidden), &both, 1e-5));
    // Beyond them the largest stay: nine ranks in eight, then in two.
    base.absorb(1.0, &learned(7, 0.8), 0.01).expect("one width");
    assert!(near(&change(&base, &hidden), &sum(&both, &change(&learned(7, 0.8), &hidden), (1.0, 0.01)), 0.05));
    let mut small = one.empty_base(2).expect("a rank");
    small.absorb(1.0, &base, 1.0).expect("one width");
    assert_eq!((small.rank(), small.factors().0.len()), (2, 2 * n));
    assert!(change(&small, &hidden).iter().any(|&x| x != 0.0));
    let beside = one.beside(&base).expect("one width");
    assert_eq!(beside.rank(), 11);
    assert!(near(&change(&beside, &hidden), &sum(&change(&one, &hidden), &change(&base, &hidden), (1.0, 1.0)), 1e-5));
    assert_eq!(MicroLora::restore(&beside.snapshot()).expect("its own bytes"), beside);
    let mut faded = one.clone();
    faded.fade(0.5);
    assert!(near(&change(&faded, &hidden), &sum(&change(&one, &hidden), &hidden, (0.5, 0.0)), 1e-5));
    // What does not fit is refused.
    let plain = MicroLora::new(n, 3, 0.8, 5).expect("a rank");
    assert!(base.absorb(1.0, &plain, 1.0).is_err() && one.beside(&plain).is_err());
    assert!(beside.beside(&base).is_err() && one.empty_base(9).is_err() && one.empty_base(0).is_err());
}

#[test]
fn no_state_is_moved_further_than_the_bound() {
    let n = 80;
    let centre = noise(n, 3);
    let mut free = MicroLora::new(n, 2, 1.0, 5).and_then(|micro| micro.centred(&centre)).expect("a centre");
    Arc::make_mut(&mut free.state).b = noise(2 * n, 6);
    let length = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>().sqrt();
    let hidden = noise(n, 40);
    let distance = length(&hidden.iter().zip(&centre).map(|(h, c)| h - c).collect::<Vec<_>>());
    let whole = change(&free, &hidden);
    let share = length(&whole) / distance;
    // What is within the bound keeps its bits.
    let wide = free.clone().within(1.01 * share).expect("a share");
    assert_eq!(change(&wide, &hidden), whole);
    let tight = free.clone().within(0.25 * share).expect("a share");
    let near = |x: &[f32], factor: f32| x.iter().zip(&whole).all(|(x, y)| (x - factor * y).abs() < 1e-5);
    assert!(near(&change(&tight, &hidden), 0.25));
    // A part of the change is a part of what is within the bound, and a sum has the bound of the first.
    assert!(near(&change(&tight.weakened(0.5), &hidden), 0.125));
    let beside = tight.beside(&free).expect("one width");
    assert!((length(&change(&beside, &hidden)) - 0.25 * share * distance).abs() < 1e-4);
    assert!(free.clone().within(0.0).is_err() && free.within(f32::NAN).is_err());
}

#[test]
fn what_an_older_version_wrote_is_read() {
    let n = 4;
    let mut bytes = b"ruvmicr2".to_vec();
    [n as u64, 1, 7, u64::from(0.5f32.to_bits())].iter().for_each(|x| bytes.extend(x.to_le_bytes()));
    let (a, b, centre) = (noise(n, 1), noise(n, 2), noise(n, 3));
    for values in [&a, &b, &vec![], &vec![], &centre] {
        bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|x| bytes.extend(x.to_le_bytes()));
    }
    let micro = MicroLora::restore(&bytes).expect("an old snapshot");
    assert_eq!((micro.factors(), micro.n_updates(), &micro.centre), ((&a[..], &b[..]), 7, &centre));
    assert_eq!(MicroLora::restore(&micro.snapshot()).expect("a new one"), micro);
}
