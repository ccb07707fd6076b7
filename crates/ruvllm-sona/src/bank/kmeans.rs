//! Clusters: k-means with the seeding of Arthur & Vassilvitskii 2007 (k-means++).

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

/// Clusters of vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct Clusters {
    /// The middles: `[k, dim]`; fewer than asked for if there are fewer different rows.
    pub centroids: Vec<f32>,
    /// For each row, the number of its cluster.
    pub assigned: Vec<u32>,
}

/// Divides `rows` (`[n, dim]`) into at most `k` clusters, in at most `n_rounds_max` rounds of Lloyd's algorithm. The same
/// rows and seed give the same clusters. A round costs `n · k · dim` multiplications.
///
/// # Panics
/// If `dim` is 0 or does not divide the number of values.
pub fn kmeans(rows: &[f32], dim: usize, k: usize, seed: u64, n_rounds_max: usize) -> Clusters {
    assert!(dim > 0 && rows.len().is_multiple_of(dim), "rows have one width");
    let n = rows.len() / dim;
    let mut centroids = seeded(rows, dim, k.min(n), seed);
    let mut assigned = vec![u32::MAX; n];
    for _ in 0..n_rounds_max {
        let mut has_moved = false;
        for (row, cluster) in rows.chunks_exact(dim).zip(&mut assigned) {
            let nearest = nearest(row, &centroids).0;
            has_moved |= *cluster != nearest;
            *cluster = nearest;
        }
        if !has_moved {
            break;
        }
        move_to_means(rows, dim, &assigned, &mut centroids);
    }
    Clusters { centroids, assigned }
}

/// Draws the first centroids: each next one is a row, drawn with a probability that grows with the square of its distance
/// to those drawn before. Rows that lie on a centroid are never drawn.
fn seeded(rows: &[f32], dim: usize, k: usize, seed: u64) -> Vec<f32> {
    let n = rows.len() / dim;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut centroids = Vec::with_capacity(k * dim);
    let mut far = vec![f64::INFINITY; n];
    for i in 0..k {
        let chosen = if i == 0 {
            (rng.next_u64() % n as u64) as usize
        } else {
            let total: f64 = far.iter().sum();
            if total <= 0.0 {
                break;
            }
            // 53 random bits make a number below one.
            let mut left = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64 * total;
            let stops = |far: &f64| {
                left -= far;
                left < 0.0 && *far > 0.0
            };
            far.iter()
                .position(stops)
                .unwrap_or_else(|| far.iter().rposition(|far| *far > 0.0).expect("the sum of them is not 0"))
        };
        let row = &rows[chosen * dim..][..dim];
        centroids.extend_from_slice(row);
        for (other, far) in rows.chunks_exact(dim).zip(&mut far) {
            *far = far.min(distance(other, row));
        }
    }
    centroids
}

/// The number of the nearest centroid and the square of its distance.
fn nearest(row: &[f32], centroids: &[f32]) -> (u32, f64) {
    let distances = centroids.chunks_exact(row.len()).map(|centroid| distance(row, centroid));
    let order = |a: &(usize, f64), b: &(usize, f64)| a.1.total_cmp(&b.1);
    let (i, distance) = distances.enumerate().min_by(order).expect("there is a centroid for every row");
    (i as u32, distance)
}

/// The square of the distance, with as many partial sums as a wide register has lanes.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let ((a16, a_tail), (b16, b_tail)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    let mut sums = [0f32; 16];
    for (a, b) in a16.iter().zip(b16) {
        for lane in 0..16 {
            sums[lane] += (a[lane] - b[lane]) * (a[lane] - b[lane]);
        }
    }
    let tail = a_tail.iter().zip(b_tail).map(|(a, b)| (a - b) * (a - b));
    sums.into_iter().chain(tail).map(f64::from).sum()
}

/// A centroid without rows stays where it is.
fn move_to_means(rows: &[f32], dim: usize, assigned: &[u32], centroids: &mut [f32]) {
    let (mut sums, mut counts) = (vec![0f64; centroids.len()], vec![0u32; centroids.len() / dim]);
    for (row, &cluster) in rows.chunks_exact(dim).zip(assigned) {
        counts[cluster as usize] += 1;
        for (sum, value) in sums[cluster as usize * dim..].iter_mut().zip(row) {
            *sum += f64::from(*value);
        }
    }
    for (cluster, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let place = cluster * dim..(cluster + 1) * dim;
        for (centroid, sum) in centroids[place.clone()].iter_mut().zip(&sums[place]) {
            *centroid = (sum / f64::from(*count)) as f32;
        }
    }
}
