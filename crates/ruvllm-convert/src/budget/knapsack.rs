//! One choice for each item, of the least loss within a budget of bytes, and within a time if there is one: the multiple-choice
//! knapsack.
//!
//! ```text
//! extra bytes over the smallest choices, in units of a share of what is left of the budget, rounded up
//! best[u] = min over the choices of an item: loss + best of the items before with u - extra        item by item
//! ```
//! Rounding leaves some bytes over: the choice that wins most for each byte takes them, as often as one fits.
//!
//! A time has a price in losses, the smallest that is found with which the choices keep to it (a Lagrange multiplier).

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
    /// Not negative.
    pub(super) time: f64,
}

/// Units of the budget while a price is looked for.
const N_COARSE_UNITS: usize = 1 << 11;
/// Prices that are tried: doublings until the time is kept, then halvings of the span between.
const N_DOUBLINGS: usize = 40;
const N_HALVINGS: usize = 8;

/// Returns the choice for each item as [`choose`] does, of at most `time_max` together; where nothing is so fast, about the fastest
/// ones.
///
/// A price for time gives one of two ends where a single item is a large share of all. So each choice of the largest item is
/// tried by itself, with a price for the others.
pub(super) fn choose_in_time(items: &[Vec<Choice>], budget: u64, time_max: f64) -> Option<Vec<usize>> {
    let free = choose(items, budget)?;
    if sum(items, &free, |choice| choice.time) <= time_max {
        return Some(free);
    }
    let span = |choices: &[Choice]| {
        let sizes = choices.iter().map(|choice| choice.n_bytes);
        sizes.clone().max().unwrap_or(0) - sizes.min().unwrap_or(0)
    };
    let largest = (0..items.len()).max_by_key(|&item| span(&items[item]))?;
    let tried = (0..items[largest].len()).filter_map(|i| {
        let mut items = items.to_vec();
        items[largest] = vec![items[largest][i]];
        let mut chosen = choose_at_a_price(&items, budget, time_max)?;
        let (loss, time) = (sum(&items, &chosen, |choice| choice.loss), sum(&items, &chosen, |choice| choice.time));
        chosen[largest] = i;
        Some(((time - time_max).max(0.0), loss, chosen))
    });
    tried.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))).map(|(_, _, chosen)| chosen)
}

/// Returns the choices of the least losses and times, by the smallest price of time that is found with which they keep to `time_max`.
fn choose_at_a_price(items: &[Vec<Choice>], budget: u64, time_max: f64) -> Option<Vec<usize>> {
    let priced = |price: f64, n_units: usize| {
        let with = |choice: &Choice| Choice { loss: choice.loss + price * choice.time, ..*choice };
        let items: Vec<Vec<Choice>> = items.iter().map(|choices| choices.iter().map(with).collect()).collect();
        choose_in_units(&items, budget, n_units)
    };
    let is_in_time = |chosen: &[usize]| sum(items, chosen, |choice| choice.time) <= time_max;
    let free = priced(0.0, N_UNITS)?;
    if is_in_time(&free) {
        return Some(free);
    }
    let (loss, time) = (sum(items, &free, |choice| choice.loss), sum(items, &free, |choice| choice.time));
    let (mut low, mut high) = (0.0, (loss / time).max(f64::MIN_POSITIVE) / 1024.0);
    for _ in 0..N_DOUBLINGS {
        if is_in_time(&priced(high, N_COARSE_UNITS)?) {
            break;
        }
        (low, high) = (high, 2.0 * high);
    }
    for _ in 0..N_HALVINGS {
        let middle = (low + high) / 2.0;
        match is_in_time(&priced(middle, N_COARSE_UNITS)?) {
            true => high = middle,
            false => low = middle,
        }
    }
    let fine = priced(high, N_UNITS)?;
    // The coarse units have shown one that keeps to it, if there is one.
    if is_in_time(&fine) { Some(fine) } else { priced(high, N_COARSE_UNITS) }
}

/// Returns a sum over what was chosen.
pub(super) fn sum(items: &[Vec<Choice>], chosen: &[usize], of: impl Fn(&Choice) -> f64) -> f64 {
    items.iter().zip(chosen).map(|(choices, &i)| of(&choices[i])).sum()
}

/// Returns the choice for each item, of at most `budget` bytes together; `None` if the smallest do not fit. An item has one choice
/// at least, and at most 256.
pub(super) fn choose(items: &[Vec<Choice>], budget: u64) -> Option<Vec<usize>> {
    choose_in_units(items, budget, N_UNITS)
}

fn choose_in_units(items: &[Vec<Choice>], budget: u64, n_units: usize) -> Option<Vec<usize>> {
    let smallest = |choices: &[Choice]| choices.iter().map(|choice| choice.n_bytes).min().unwrap_or(0);
    let least: u64 = items.iter().map(|choices| smallest(choices)).sum();
    let slack = budget.checked_sub(least)?;
    let most: u64 = items.iter().map(|choices| choices.iter().map(|choice| choice.n_bytes).max().unwrap_or(0)).sum();
    let slack = slack.min(most - least);
    let n_units = n_units.min(TRACE_BYTES / items.len().max(1)).max(1);
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
        pairs.iter().map(|&(n_bytes, loss)| Choice { n_bytes, loss, time: 0.0 }).collect()
    }

    fn totals(items: &[Vec<Choice>], chosen: &[usize]) -> (u64, f64) {
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
                    (0..1 + number(4))
                        .map(|_| Choice { n_bytes: 1 + number(90), loss: number(1000) as f64, time: 0.0 })
                        .collect()
                })
                .collect();
            let budget = number(300);
            let chosen = choose(&items, budget);
            assert_eq!(chosen.as_ref().map(|chosen| totals(&items, chosen).1), least_loss(&items, budget), "{items:?}");
            assert!(chosen.is_none_or(|chosen| totals(&items, &chosen).0 <= budget));
        }
    }

    /// Twenty items of two types of the same size, of which the worse one is faster, and one that is smaller and slow.
    fn timed() -> Vec<Vec<Choice>> {
        let choices = |i: usize| {
            let choice = |(n_bytes, loss, time)| Choice { n_bytes, loss, time };
            [(10, 1.0 + i as f64, 2.0), (10, 2.0 + 1.5 * i as f64, 1.0), (8, 4.0 + i as f64, 3.0)].map(choice).to_vec()
        };
        (0..20).map(choices).collect()
    }

    #[test]
    fn a_time_is_kept_where_it_can_be() {
        let items = timed();
        let of =
            |chosen: &[usize]| (sum(&items, chosen, |choice| choice.loss), sum(&items, chosen, |choice| choice.time));
        let free = choose(&items, 200).expect("it fits");
        assert_eq!(choose_in_time(&items, 200, 40.0), Some(free), "the time allows all");
        let (loss, time) = of(&choose_in_time(&items, 200, 30.0).expect("it fits"));
        // The ten that lose the least by it are fast.
        assert_eq!((time, loss), (30.0, (0..20).map(|i| 1.0 + f64::from(i)).sum::<f64>() + 10.0 + 0.5 * 45.0));
        let (_, fastest) = of(&choose_in_time(&items, 200, 1.0).expect("it fits"));
        assert_eq!(fastest, 20.0, "nothing is as fast as that");
        assert_eq!(choose_in_time(&items, 100, 100.0), None);
    }

    #[test]
    fn a_large_item_does_not_leave_the_time_of_the_others_unused() {
        // A head that is most of the bytes and takes no time: one price gives it all bytes, or the others all time.
        let mut items = timed();
        let head = [(1000, 0.0, 0.0), (500, 6.0, 0.0)].map(|(n_bytes, loss, time)| Choice { n_bytes, loss, time });
        items.push(head.to_vec());
        for time_max in [25.0, 30.0, 35.0] {
            let chosen = choose_in_time(&items, 1190, time_max).expect("it fits");
            let (bytes, _) = totals(&items, &chosen);
            let time = sum(&items, &chosen, |choice| choice.time);
            assert!(bytes <= 1190 && time <= time_max && time > time_max - 2.0, "{time} of {time_max}");
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
        let (n_bytes, _) = totals(&items, &choose(&items, least * 4 / 3).expect("it fits"));
        assert!(n_bytes <= least * 4 / 3 && n_bytes > least * 4 / 3 * 999 / 1000, "{n_bytes} of {}", least * 4 / 3);
        assert_eq!(choose(&items, least - 1), None);
        assert!(choose(&items, least).expect("the smallest fit").iter().all(|&i| i == 0));
        assert!(choose(&items, u64::MAX).expect("all fits").iter().all(|&i| i == 3));
        assert_eq!(choose(&[], 0), Some(Vec::new()));
    }
}
