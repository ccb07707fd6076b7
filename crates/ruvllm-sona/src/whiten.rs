//! Hidden states as keys: centred, half-whitened, of unit length, in bytes.
//!
//! ```text
//! fit:   μ = mean(h)      Σ = cov(h) = U·Λ·Uᵀ
//! key:   x = Λ^(-1/4)·Uᵀ·(h - μ)      k = x / |x|      q = round(127·k / max |k|)
//! ```
//! Final hidden states share a mean that is three quarters of their length and a few directions with most of the variance;
//! neighbours by raw distance are neighbours in those. `Σ^(-1/4)` halves the exponents. It is applied in the basis of `U`,
//! which changes no dot product and puts the directions that tell most first: a prefix of a key is its own coarse version.

use half::f16;
use ruvllm_kernels::Isa;
use ruvllm_kernels::distance::PADDING;
use ruvllm_kernels::lowrank::{self, Factor};

use crate::codec::{Reader, Writer};
use crate::eigen;
use crate::error::{SonaError, SonaErrorKind};
use ruvllm_kernels::Compute;

/// What a snapshot begins with.
const MAGIC: [u8; 8] = *b"ruvwhit1";
/// The widest hidden state that is read.
pub(crate) const N_EMBD_MAX: usize = 1 << 16;
/// Every variance counts at least this share of the mean one.
const FLOOR: f64 = 1e-4;

/// A key as it is kept: bytes and what they are times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Key {
    /// `[n_key]`, none of them -128.
    pub bytes: Vec<i8>,
    /// A byte stands for itself times this; the key's length is 1.
    pub scale: f32,
}

/// Makes keys of hidden states.
#[derive(Clone, Debug, PartialEq)]
pub struct Whitener {
    n_embd: usize,
    n_key: usize,
    /// `[n_embd]`
    mean: Vec<f32>,
    /// `[n_key, stride(n_embd)]`: `Λ^(-1/4)·Uᵀ`.
    rows: Vec<f16>,
}

impl Whitener {
    /// Fits mean and covariance to hidden states: `[n, n_embd]`. Keys have the `n_key` directions of most variance, rounded
    /// up to a multiple of [`PADDING`]; `power` is the exponent of the covariance, 0.25 for half-whitening.
    ///
    /// Cost: `n·n_embd²` operations and some tens of `n_embd³`; a second for 10,000 states of 576.
    ///
    /// # Errors
    /// Fewer than two states, a width of 0, a power outside 0 to 0.5, what is no finite number.
    pub fn fit(hidden: &[f32], n_embd: usize, n_key: usize, power: f64) -> Result<Whitener, SonaError> {
        if n_embd == 0 || n_embd > N_EMBD_MAX || !hidden.len().is_multiple_of(n_embd) || hidden.len() < 2 * n_embd {
            let line = format!("{} values are no two or more hidden states of {n_embd}", hidden.len());
            return Err(SonaError::new(SonaErrorKind::Shape, line));
        }
        if !(0.0..=0.5).contains(&power) {
            return Err(SonaError::new(SonaErrorKind::Value, format!("a whitening power of {power}; choose 0 to 0.5")));
        }
        let n = (hidden.len() / n_embd) as f64;
        let mut mean = vec![0.0; n_embd];
        for h in hidden.chunks_exact(n_embd) {
            mean.iter_mut().zip(h).for_each(|(m, &h)| *m += f64::from(h));
        }
        mean.iter_mut().for_each(|m| *m /= n);
        let (mut covariance, mut x) = (vec![0.0; n_embd * n_embd], vec![0.0; n_embd]);
        for h in hidden.chunks_exact(n_embd) {
            x.iter_mut().zip(h).zip(&mean).for_each(|((x, &h), m)| *x = f64::from(h) - m);
            eigen::add_square(&mut covariance, &x, n);
        }
        eigen::mirror(&mut covariance, n_embd);
        let trace: f64 = (0..n_embd).map(|i| covariance[i * n_embd + i]).sum();
        if !trace.is_finite() || trace <= 0.0 {
            let line = format!("hidden states with a variance of {trace}; calibrate on more and other text");
            return Err(SonaError::new(SonaErrorKind::Value, line));
        }
        let (values, vectors) = eigen::symmetric(covariance, n_embd);
        let floor = FLOOR * trace / n_embd as f64;
        let n_key = n_key.clamp(1, n_embd).next_multiple_of(PADDING);
        let stride = lowrank::stride(n_embd);
        let mut rows = vec![f16::ZERO; n_key * stride];
        for (i, row) in rows.chunks_exact_mut(stride).take(n_embd).enumerate() {
            let scale = (values[i].max(floor) * n_embd as f64 / trace).powf(-power);
            row.iter_mut().zip(&vectors[i * n_embd..][..n_embd]).for_each(|(r, v)| *r = f16::from_f64(scale * v));
        }
        Ok(Whitener { n_embd, n_key, mean: mean.iter().map(|&m| m as f32).collect(), rows })
    }

    /// Returns the width of the hidden state.
    pub fn n_embd(&self) -> usize {
        self.n_embd
    }

    /// Returns the mean of the states it was fitted to: `[n_embd]`.
    pub fn mean(&self) -> &[f32] {
        &self.mean
    }

    /// Returns the first directions, those in which states vary most: `[n, n_embd]`. Each is so long that a state's part along it
    /// varies as much as one of its values does in the mean, if it was fitted with a power of 0.25.
    pub(crate) fn directions(&self, n: usize) -> Vec<f32> {
        let rows = self.rows.chunks_exact(lowrank::stride(self.n_embd)).take(n);
        let direction = |row: &[f16]| {
            let row: Vec<f32> = row[..self.n_embd].iter().map(|x| x.to_f32()).collect();
            // A row is as long as the fourth root of `mean variance / variance`.
            let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
            row.into_iter().map(move |x| length * x)
        };
        rows.flat_map(direction).collect()
    }

    /// Returns the bytes of a key.
    pub fn n_key(&self) -> usize {
        self.n_key
    }

    /// Makes the key of a hidden state: `[n_embd]`. A state that is the mean itself has a key of zeros.
    ///
    /// # Panics
    /// If the state has another width.
    pub fn key(&self, hidden: &[f32], isa: Isa) -> Key {
        let (centred, mut x) = (self.centred(hidden), vec![0.0; self.n_key]);
        lowrank::pick(isa).shrink(Factor::F16(&self.rows), self.n_key, &centred, self.n_embd, &mut x);
        quantize(&x)
    }

    /// Returns the key of a state, of which each thread of the pool makes a part.
    ///
    /// # Panics
    /// As [`Whitener::key`] does; inside a threads's closure.
    pub fn key_by(&self, hidden: &[f32], compute: &Compute) -> Key {
        let (centred, mut x) = (self.centred(hidden), vec![0.0; self.n_key]);
        let rows = self.rows.chunks_exact(PADDING * lowrank::stride(self.n_embd));
        let lowrank = lowrank::pick(compute.isa);
        compute.each(rows.zip(x.chunks_exact_mut(PADDING)), |(rows, x)| {
            lowrank.shrink(Factor::F16(rows), PADDING, &centred, self.n_embd, x);
        });
        quantize(&x)
    }

    /// Returns a state less the mean.
    fn centred(&self, hidden: &[f32]) -> Vec<f32> {
        assert_eq!(hidden.len(), self.n_embd, "a hidden state of {} values", hidden.len());
        hidden.iter().zip(&self.mean).map(|(h, m)| h - m).collect()
    }

    /// Returns what a text is found by among others: the whitened mean of its states (`[n, n_embd]`), of length 1, `[n_embd]`. It lies in
    /// the states' own directions (`U·Λ^(-1/4)·Uᵀ`), not in those of the keys, so another calibration of the model gives nearly the same.
    ///
    /// All zeros where that is the mean of all states, or there are none.
    ///
    /// # Panics
    /// If the states have another width.
    pub fn embedding(&self, states: &[f32], isa: Isa) -> Vec<f32> {
        assert!(states.len().is_multiple_of(self.n_embd), "{} values of states of {}", states.len(), self.n_embd);
        let mut centred = vec![0.0; self.n_embd];
        for state in states.chunks_exact(self.n_embd) {
            centred.iter_mut().zip(state).zip(&self.mean).for_each(|((sum, h), m)| *sum += h - m);
        }
        let mut key = vec![0.0; self.n_key];
        lowrank::pick(isa).shrink(Factor::F16(&self.rows), self.n_key, &centred, self.n_embd, &mut key);
        let mut embedding = vec![0.0; self.n_embd];
        for (value, row) in key.iter().zip(self.rows.chunks_exact(lowrank::stride(self.n_embd))) {
            let row = || row[..self.n_embd].iter().map(|x| x.to_f32());
            let length = row().map(|x| x * x).sum::<f32>().sqrt();
            if length > 0.0 {
                embedding.iter_mut().zip(row()).for_each(|(sum, x)| *sum += value / length * x);
            }
        }
        let length = embedding.iter().map(|x| x * x).sum::<f32>().sqrt();
        if length > 0.0 && length.is_finite() {
            embedding.iter_mut().for_each(|x| *x /= length);
        }
        embedding
    }

    /// Returns everything as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Writer::of(MAGIC);
        out.u64(self.n_embd as u64);
        out.u64(self.n_key as u64);
        out.plain_f32s(&self.mean);
        out.part(bytemuck::cast_slice(&self.rows));
        out.take()
    }

    /// Reads what [`Whitener::snapshot`] gave.
    ///
    /// # Errors
    /// The bytes are damaged, or of another version.
    pub fn restore(bytes: &[u8]) -> Result<Whitener, SonaError> {
        let mut from = Reader::of(bytes, MAGIC, "whitening of keys")?;
        let (n_embd, n_key) = (from.number(N_EMBD_MAX)?, from.number(N_EMBD_MAX + PADDING)?);
        let mean = from.plain_f32s(n_embd)?;
        let part = from.part()?;
        let stride = lowrank::stride(n_embd);
        if n_embd == 0 || n_key == 0 || !n_key.is_multiple_of(PADDING) || part.len() != 2 * n_key * stride {
            return Err(from.invalid(format_args!("{} bytes for {n_key} rows of {n_embd}", part.len())));
        }
        let rows: Vec<f16> = part.as_chunks::<2>().0.iter().map(|x| f16::from_le_bytes(*x)).collect();
        if rows.iter().any(|x| !x.is_finite()) {
            return Err(from.invalid("a row with what is no finite number"));
        }
        from.end()?;
        Ok(Whitener { n_embd, n_key, mean, rows })
    }
}

/// Brings a vector to length 1 and to bytes.
fn quantize(x: &[f32]) -> Key {
    let length = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    let max = x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    if !(length > 0.0 && length.is_finite() && max > 0.0) {
        return Key { bytes: vec![0; x.len()], scale: 0.0 };
    }
    let inverse = 127.0 / max;
    let bytes = x.iter().map(|x| (x * inverse).round().clamp(-127.0, 127.0) as i8).collect();
    Key { bytes, scale: (f64::from(max) / 127.0 / length) as f32 }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ruvllm_cpu::ThreadPool;

    use super::*;

    /// States around a common mean with one loud direction, and one quiet one that tells them apart.
    fn states(n: usize) -> Vec<f32> {
        (0..n)
            .flat_map(|i| {
                let loud = ((i * 7) as f32 * 0.37).sin() * 30.0;
                let quiet = if i % 2 == 0 { 1.0 } else { -1.0 };
                (0..70).map(move |k| {
                    5.0 + if k < 35 { loud } else { 0.0 }
                        + if k % 7 == 0 { quiet } else { 0.0 }
                        + ((i * 31 + k * 17) as f32).sin() * 0.1
                })
            })
            .collect()
    }

    fn similarity(a: &Key, b: &Key) -> f32 {
        a.bytes.iter().zip(&b.bytes).map(|(&x, &y)| f32::from(x) * f32::from(y)).sum::<f32>() * a.scale * b.scale
    }

    #[test]
    fn quiet_directions_count_when_whitened() {
        let states = states(200);
        let state = |i: usize| &states[i * 70..][..70];
        let keys = |power| {
            let whitener = Whitener::fit(&states, 70, 70, power).expect("states");
            assert_eq!(whitener.n_key(), 128);
            move |i: usize| whitener.key(state(i), Isa::best())
        };
        let (raw, half) = (keys(0.0), keys(0.25));
        for i in [3, 50] {
            assert!((similarity(&half(i), &half(i)) - 1.0).abs() < 0.01);
        }
        let whitener = Whitener::fit(&states, 70, 70, 0.25).expect("states");
        for n_threads in [1, 3] {
            let compute = Compute { isa: Isa::best(), threads: Arc::new(ThreadPool::new(n_threads)) };
            (0..9).for_each(|i| assert_eq!(whitener.key_by(state(i), &compute), half(i), "{n_threads} threads"));
        }
        // The mean gap between the same side and the other one grows.
        let gap = |key: &dyn Fn(usize) -> Key| {
            let mean = |odd: usize| (1..40).map(|i| similarity(&key(0), &key(2 * i + odd))).sum::<f32>() / 39.0;
            mean(0) - mean(1)
        };
        assert!(gap(&half) > 2.0 * gap(&raw) && gap(&half) > 0.1, "{} {}", gap(&half), gap(&raw));
    }

    #[test]
    fn an_embedding_of_one_state_is_its_key_in_other_directions() {
        let states = states(200);
        let whitener = Whitener::fit(&states, 70, 70, 0.25).expect("states");
        let one = |i: usize| &states[i * 70..][..70];
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
        let isa = Isa::best();
        for (i, k) in [(0, 0), (0, 1), (3, 50), (7, 9)] {
            let cosine = dot(&whitener.embedding(one(i), isa), &whitener.embedding(one(k), isa));
            let keys = similarity(&whitener.key(one(i), isa), &whitener.key(one(k), isa));
            assert!((cosine - keys).abs() < 0.02, "{i} {k}: {cosine} {keys}");
        }
        let two = whitener.embedding(&states[..140], isa);
        assert!((dot(&two, &two) - 1.0).abs() < 1e-5);
        assert!(whitener.embedding(&[], isa).iter().all(|&x| x == 0.0));
        // Calibrated on other text of the same kind.
        let other = Whitener::fit(&states[70 * 20..], 70, 70, 0.25).expect("states");
        assert!(dot(&other.embedding(one(5), isa), &whitener.embedding(one(5), isa)) > 0.95);
    }

    #[test]
    fn snapshots_are_the_same_and_damage_is_told() {
        let states = states(80);
        let whitener = Whitener::fit(&states, 70, 64, 0.25).expect("states");
        let bytes = whitener.snapshot();
        assert_eq!(Whitener::restore(&bytes).expect("a snapshot"), whitener);
        for cut in [0, 8, 24, 100, bytes.len() - 1] {
            assert!(Whitener::restore(&bytes[..cut]).is_err(), "{cut} bytes");
        }
        assert!(Whitener::restore(&[&bytes[..], &[0]].concat()).is_err());
        assert!(Whitener::fit(&states[..70], 70, 64, 0.25).is_err());
        assert!(Whitener::fit(&states, 70, 64, 0.75).is_err());
        assert!(Whitener::fit(&[1.0; 140], 70, 64, 0.25).is_err());
        let zeros = quantize(&[0.0; 64]);
        assert_eq!((zeros.scale, zeros.bytes), (0.0, vec![0; 64]));
    }
}
