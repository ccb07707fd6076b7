//! Looking up entries by name without a second copy of the names.

/// Positions `0..n` sorted by the name each position has, or the two positions of a name that occurs twice.
pub(crate) fn by_name<'a>(n: usize, name: impl Fn(usize) -> &'a str) -> Result<Vec<u32>, (usize, usize)> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    order.sort_unstable_by(|&a, &b| name(a as usize).cmp(name(b as usize)).then(a.cmp(&b)));
    match order.windows(2).find(|pair| name(pair[0] as usize) == name(pair[1] as usize)) {
        Some(pair) => Err((pair[0] as usize, pair[1] as usize)),
        None => Ok(order),
    }
}

/// Finds `wanted` in what [`by_name`] returned: `Ok` is its place in `order`, `Err` where it belongs.
pub(crate) fn search<'a>(order: &[u32], wanted: &str, name: impl Fn(usize) -> &'a str) -> Result<usize, usize> {
    order.binary_search_by(|&i| name(i as usize).cmp(wanted))
}
