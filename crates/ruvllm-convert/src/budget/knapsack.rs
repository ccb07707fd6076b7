//! One choice for each item, of the least loss within a budget: the multiple-choice knapsack.
//!
//! ```text
//! extra bytes over the smallest choices, in units of a share of what is left of the budget, rounded up
//! best[u] = min over the choices of an item: loss + best of the items before with u - extra        item by item
//! ```
//! Rounding leaves some bytes over: the choice that wins most for each byte takes them, as often as one fits.

/// Units that the budget above the smallest choices is divided into.
const N_UNITS: usize = 1 << 16;

/// Most bytes for what was chosen at each budget: with very many items units are larger.
const TRACE_BYTES: usize = 1 << 26;

/// One of the choices for an item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Choice {
    pub(super) n_bytes: u64,
    /// Not negative.
    pub(super) loss: f64,
}

/// Returns the choice for each item, of at most `budget` bytes together; `None` if the smallest do not fit. An item has one choice
/// at least, and at most 256.
pub(super) fn choose(items: &[Vec<Choice>], budget: u64) -> Option<Vec<usize>> {
    let smallest = |choices: &[Choice]| choices.iter().map(|choice| choice.n_bytes).min().unwrap_or(0);
    let least: u64 = items.iter().map(|choices| smallest(choices)).sum();
    let slack = budget.checked_sub(least)?;
    let most: u64 = items.iter().map(|choices| choices.iter().map(|choice| choice.n_bytes).max().unwrap_or(0)).sum();
    let slack = slack.min(most - least);
    let n_units = N_UNITS.min(TRACE_BYTES / items.len().max(1)).max(1);
    let unit = slack.div_ceil(n_units as u64).max(1);
    let n_units = (slack / unit) as usize;
    let mut best = vec![0.0; n_units + 1];
    let mut traces = Vec::with_capacity(items.len());
    for choices in items {
        let least = smallest(choices);
        let (mut next, mut trace) = (vec![f64::INFINITY; n_units + 1], vec![0u8; n_units + 1]);
        for (i, choice) in choices.iter().enumerate() {
            let extra = (choice.n_bytes - least).div_ceil(unit) as usize;
            let Some(room) = (n_units + 1).checked_sub(extra) else { continue };
            let places = next[extra..].iter_mut().zip(&mut trace[extra..]);
            for ((place, from), before) in places.zip(&best[..room]) {
                if before + choice.loss < *place {
                    (*place, *from) = (before + choice.loss, i as u8);
                }
            }
        }
        best = next;
        traces.push((trace, least));
    }
    let mut left = n_units;
    let mut chosen = vec![0; items.len()];
    for (i, (trace, least)) in traces.iter().enumerate().rev() {
        chosen[i] = usize::from(trace[left]);
        left -= (items[i][chosen[i]].n_bytes - least).div_ceil(unit) as usize;
    }
    fill(items, budget, &mut chosen);
    Some(chosen)
}

/// Spends what is left of the budget.
fn fill(items: &[Vec<Choice>], budget: u64, chosen: &mut [usize]) {
    let used: u64 = items.iter().zip(&*chosen).map(|(choices, &i)| choices[i].n_bytes).sum();
    let mut left = budget - used;
    loop {
        let upgrades = items.iter().zip(&*chosen).enumerate().flat_map(|(item, (choices, &now))| {
            let now = choices[now];
            choices.iter().enumerate().filter_map(move |(i, choice)| {
                let (won, extra) = (now.loss - choice.loss, choice.n_bytes.saturating_sub(now.n_bytes));
                (won > 0.0 && extra <= left).then(|| (won / extra.max(1) as f64, item, i, extra))
            })
        });
        let Some((_, item, i, extra)) = upgrades.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))) else { return };
        (chosen[item], left) = (i, left - extra);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(pairs: &[(u64, f64)]) -> Vec<Choice> {
        pairs.iter().map(|&(n_bytes, loss)| Choice { n_bytes, loss }).collect()
    }

    fn sum(items: &[Vec<Choice>], chosen: &[usize]) -> (u64, f64) {
        let all = items.iter().zip(chosen).map(|(choices, &i)| choices[i]);
        all.fold((0, 0.0), |(n_bytes, loss), choice| (n_bytes + choice.n_bytes, loss + choice.loss))
    }

    /// Tries everything.
    fn least_loss(items: &[Vec<Choice>], budget: u64) -> Option<f64> {
        let Some((first, rest)) = items.split_first() else { return Some(0.0) };
        let all = first.iter().filter(|choice| choice.n_bytes <= budget);
        all.filter_map(|choice| Some(choice.loss + least_loss(rest, budget - choice.n_bytes)?)).min_by(f64::total_cmp)
    }

    #[test]
    fn the_choices_are_the_best_ones_that_fit() {
        let mut state = 1u64;
        let mut number = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for _ in 0..200 {
            let items: Vec<Vec<Choice>> = (0..1 + number(5))
                .map(|_| {
                    (0..1 + number(4)).map(|_| Choice { n_bytes: 1 + number(90), loss: number(1000) as f64 }).collect()
                })
                .collect();
            let budget = number(300);
            let chosen = choose(&items, budget);
            assert_eq!(chosen.as_ref().map(|chosen| sum(&items, chosen).1), least_loss(&items, budget), "{items:?}");
            assert!(chosen.is_none_or(|chosen| sum(&items, &chosen).0 <= budget));
        }
    }

    #[test]
    fn large_sizes_lose_little_by_rounding() {
        let sizes = [1_000_003u64, 77_777_777, 5_000_011, 123_456_789];
        let items: Vec<_> = (0..120)
            .map(|i| {
                let n = sizes[i % 4];
                choices(&[(3 * n, 8.0 * n as f64), (4 * n, 2.0 * n as f64), (5 * n, 0.5 * n as f64), (8 * n, 0.0)])
            })
            .collect();
        let least: u64 = items.iter().map(|choices| choices[0].n_bytes).sum();
        let (n_bytes, _) = sum(&items, &choose(&items, least * 4 / 3).expect("it fits"));
        assert!(n_bytes <= least * 4 / 3 && n_bytes > least * 4 / 3 * 999 / 1000, "{n_bytes} of {}", least * 4 / 3);
        assert_eq!(choose(&items, least - 1), None);
        assert!(choose(&items, least).expect("the smallest fit").iter().all(|&i| i == 0));
        assert!(choose(&items, u64::MAX).expect("all fits").iter().all(|&i| i == 3));
        assert_eq!(choose(&[], 0), Some(Vec::new()));
    }
}
