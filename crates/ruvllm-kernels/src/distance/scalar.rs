//! Plain loops.

pub(super) fn dots(query: &[i8], rows: &[i8], out: &mut [i32]) {
    for (row, out) in rows.chunks_exact(query.len().max(1)).zip(out) {
        *out = query.iter().zip(row).map(|(&q, &x)| i32::from(q) * i32::from(x)).sum();
    }
}
