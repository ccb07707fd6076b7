//! MicroLoRA: an adapter of rank 1 to 4 on the final hidden state, learned one token at a time.
//!
//! ```text
//! forward:    h' = h + s·B·(A·h)                  logits = W·h'         (or A·(h - c), see MicroLora::centred)
//! gradient:   g = Wᵀ·(p - y)      of the loss -log p[target]; p the softmax of the logits, y the target's one-hot
//!             ∂/∂B = s·g·(A·h)ᵀ   ∂/∂A = s·(Bᵀ·g)·hᵀ
//! sparse:     g ≈ Σ over the likeliest tokens and the target of (p - y)·W[token]
//! ```
//! All it needs are quantities that decoding has anyway: the hidden state, the probabilities, and rows of the head. The
//! exact gradient reads the whole head; the sparse one some tens of rows. `B` begins at zero and `A` at seeded noise, as in
//! Hu et al. 2021 (arXiv:2106.09685), so that nothing changes before something was learned.

mod basis;
mod gradient;
mod optimizer;

pub use basis::Basis;
pub use gradient::{Gradient, of_state};
pub use optimizer::{Rule, UpdateOptions};

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::adapter::{Adapter, Delta, RowOrder, Values};
use crate::dot::dot;
use crate::error::{LoraError, LoraErrorKind, invalid};
use optimizer::Moments;

/// The largest rank: more belongs into an adapter that is trained.
pub const MICRO_RANK_MAX: usize = 4;
/// The largest rank of what a MicroLoRA is merged into.
pub const BASE_RANK_MAX: usize = 8;
/// Both beside each other.
const ALL_RANK_MAX: usize = MICRO_RANK_MAX + BASE_RANK_MAX;
/// The widest hidden state that a snapshot is read of.
const N_EMBD_MAX: usize = 1 << 20;
/// What a snapshot begins with.
const MAGIC: [u8; 8] = *b"ruvmicr2";

/// Gives rows of the output head.
pub trait HeadRows {
    /// Writes the row of a token: `[n_embd]`, as floats.
    fn row(&self, token: u32, out: &mut [f32]);
}

/// A small adapter of the final hidden state.
///
/// ```
/// use ruvllm_lora::micro::{HeadRows, MicroLora, UpdateOptions};
///
/// /// A head of three tokens over four values.
/// struct Head([[f32; 4]; 3]);
/// impl HeadRows for Head {
///     fn row(&self, token: u32, out: &mut [f32]) {
///         out.copy_from_slice(&self.0[token as usize]);
///     }
/// }
///
/// let head = Head([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]);
/// let (mut micro, hidden) = (MicroLora::new(4, 1, 1.0, 7)?, [0.5, 0.25, -0.5, 1.0]);
/// let (mut gradient, options) = (micro.gradient_buffer(), UpdateOptions::sgd(0.5));
/// let logit = |micro: &MicroLora, token: usize| {
///     let mut h = hidden;
///     micro.forward(&mut h);
///     head.0[token].iter().zip(h).map(|(w, h)| w * h).sum::<f32>()
/// };
/// for _ in 0..50 {
///     let logits = [0, 1, 2].map(|token| logit(&micro, token));
///     let sum: f32 = logits.iter().map(|x| x.exp()).sum();
///     let likeliest = [0u32, 1, 2].map(|token| (token, logits[token as usize].exp() / sum));
///     micro.gradient(&hidden, &likeliest, 2, &head, &mut gradient);
///     micro.update(&mut gradient, &options);
/// }
/// assert!(logit(&micro, 2) > logit(&micro, 0) + 2.0);
/// # Ok::<(), ruvllm_lora::LoraError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct MicroLora {
    n_embd: usize,
    rank: usize,
    scale: f32,
    /// How much of the change is made.
    strength: f32,
    /// How far a state is moved at most, of its distance from the centre.
    moves_max: f32,
    /// `[rank, n_embd]`
    a: Vec<f32>,
    /// `[rank, n_embd]`: `B` on its side.
    b: Vec<f32>,
    moments: Moments,
    n_updates: u64,
    /// `[n_embd]`, or nothing.
    centre: Vec<f32>,
    /// What steps of `B` are taken in; `None`: as its values lie.
    basis: Option<Arc<Basis>>,
}

impl MicroLora {
    /// Makes one that changes nothing yet.
    ///
    /// # Errors
    /// The rank is not 1 to [`MICRO_RANK_MAX`], the width is 0, or the scale is not a positive number.
    pub fn new(n_embd: usize, rank: usize, scale: f32, seed: u64) -> Result<MicroLora, LoraError> {
        check(n_embd, (rank, MICRO_RANK_MAX), scale)?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // Uniform within ±√(3 / n_embd): A·h is about as long as a component of h.
        let bound = (3.0 / n_embd as f32).sqrt();
        let mut draw = || (rng.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0;
        let a = (0..rank * n_embd).map(|_| bound * draw()).collect();
        let b = vec![0.0; rank * n_embd];
        Ok(MicroLora {
            n_embd,
            rank,
            scale,
            strength: 1.0,
            moves_max: f32::INFINITY,
            a,
            b,
            moments: Moments::default(),
            n_updates: 0,
            centre: Vec::new(),
            basis: None,
        })
    }

    /// Makes it see hidden states less a centre, `[n_embd]`: their mean on ordinary text. Three quarters of a final hidden
    /// state's length are that mean; seen whole, much of what is learned changes every text alike.
    ///
    /// # Errors
    /// The centre has another width, or holds what is no finite number.
    pub fn centred(mut self, centre: &[f32]) -> Result<MicroLora, LoraError> {
        if centre.len() != self.n_embd || centre.iter().any(|x| !x.is_finite()) {
            let line = format!("a centre of {} values, or not of numbers, for states of {}", centre.len(), self.n_embd);
            return Err(invalid(line));
        }
        self.centre = centre.to_vec();
        Ok(self)
    }

    /// Makes it begin with other rows of `A` than drawn ones: `[rank, n_embd]`. `B` stays, so what has learned nothing changes nothing.
    ///
    /// # Errors
    /// They are of another shape, or hold what is no finite number.
    pub fn along(mut self, rows: &[f32]) -> Result<MicroLora, LoraError> {
        if rows.len() != self.a.len() || rows.iter().any(|x| !x.is_finite()) {
            let line = format!("{} values, or not of numbers, for {} rows of {}", rows.len(), self.rank, self.n_embd);
            return Err(invalid(line));
        }
        self.a.copy_from_slice(rows);
        Ok(self)
    }

    /// Makes it move no state by more than a share of the state's distance from the centre, however large its factors have become:
    /// what follows from wrong labels would otherwise grow without end. Gradients are those of the whole change. A snapshot leaves the
    /// bound out.
    ///
    /// # Errors
    /// The share is not above 0.
    pub fn within(mut self, share: f32) -> Result<MicroLora, LoraError> {
        if share.is_nan() || share <= 0.0 {
            return Err(invalid(format!("a state moved by {share} of its distance at most; give a share above 0")));
        }
        self.moves_max = share;
        Ok(self)
    }

    /// Makes it take its steps of `B` in a basis: see [`Basis`]. What it changes stays the same. A snapshot leaves the basis out.
    ///
    /// # Errors
    /// The basis is of another width.
    pub fn in_basis(mut self, basis: Arc<Basis>) -> Result<MicroLora, LoraError> {
        if basis.n_embd() != self.n_embd {
            let line = format!("a basis of {} values for states of {}", basis.n_embd(), self.n_embd);
            return Err(invalid(line));
        }
        self.basis = Some(basis);
        Ok(self)
    }

    /// Returns the width of the hidden state.
    pub fn n_embd(&self) -> usize {
        self.n_embd
    }

    /// Returns the rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns how often it was updated.
    pub fn n_updates(&self) -> u64 {
        self.n_updates
    }

    /// Returns `A`: `[rank, n_embd]`, and `Bᵀ`: `[rank, n_embd]`.
    pub fn factors(&self) -> (&[f32], &[f32]) {
        (&self.a, &self.b)
    }

    /// Returns what a gradient is computed in.
    pub fn gradient_buffer(&self) -> Gradient {
        Gradient::zeros(self.rank, self.n_embd)
    }

    /// Returns `A·h`, or `A·(h - centre)`.
    fn shrink(&self, hidden: &[f32]) -> [f32; ALL_RANK_MAX] {
        let mut t = [0.0; ALL_RANK_MAX];
        for (t, a) in t.iter_mut().zip(self.a.chunks_exact(self.n_embd)) {
            *t = dot(a, hidden);
            if !self.centre.is_empty() {
                *t -= dot(a, &self.centre);
            }
        }
        t
    }

    /// Changes a hidden state: `[n_embd]`.
    ///
    /// # Panics
    /// If it has another width.
    pub fn forward(&self, hidden: &mut [f32]) {
        assert_eq!(hidden.len(), self.n_embd, "a hidden state of {} values", hidden.len());
        let t = self.shrink(hidden).map(|t| self.scale * t);
        let share = self.strength * self.shortened(hidden, &t);
        for (t, b) in t.iter().zip(self.b.chunks_exact(self.n_embd)) {
            let t = share * t;
            hidden.iter_mut().zip(b).for_each(|(h, b)| *h += t * b);
        }
    }

    /// Returns what of the change `B·t` of a state is within the bound: 1 if all of it is.
    fn shortened(&self, hidden: &[f32], t: &[f32]) -> f32 {
        const CHUNK: usize = 64;
        if self.moves_max.is_infinite() {
            return 1.0;
        }
        let (mut moves, mut distance) = (0.0, 0.0);
        for (i, hidden) in hidden.chunks(CHUNK).enumerate() {
            let at = i * CHUNK..i * CHUNK + hidden.len();
            let (mut change, mut from_centre) = ([0.0; CHUNK], [0.0; CHUNK]);
            for (t, b) in t.iter().zip(self.b.chunks_exact(self.n_embd)) {
                change.iter_mut().zip(&b[at.clone()]).for_each(|(x, b)| *x += t * b);
            }
            from_centre[..hidden.len()].copy_from_slice(hidden);
            if !self.centre.is_empty() {
                from_centre.iter_mut().zip(&self.centre[at]).for_each(|(x, c)| *x -= c);
            }
            moves += dot(&change, &change);
            distance += dot(&from_centre, &from_centre);
        }
        let most = self.moves_max * self.moves_max * distance;
        if moves > most { (most / moves).sqrt() } else { 1.0 }
    }

    /// Returns one that makes the same change times a factor; it does not learn.
    ///
    /// # Panics
    /// If the factor is no positive number.
    pub fn weakened(&self, factor: f32) -> MicroLora {
        assert!(factor.is_finite() && factor > 0.0, "a change times {factor}");
        let whole = (self.a.clone(), self.b.clone());
        MicroLora { strength: self.strength * factor, ..self.of_factors(self.rank, whole, self.n_updates) }
    }

    /// Returns one of the same states with other factors; it does not learn.
    fn of_factors(&self, rank: usize, (a, b): (Vec<f32>, Vec<f32>), n_updates: u64) -> MicroLora {
        MicroLora {
            n_embd: self.n_embd,
            rank,
            scale: self.scale,
            strength: 1.0,
            moves_max: self.moves_max,
            a,
            b,
            moments: Moments::default(),
            n_updates,
            centre: self.centre.clone(),
            basis: None,
        }
    }

    /// Returns what the whole change gains for a token that came: `ln p₁[target] - ln p₀[target]` in nats, `p₁` with the change
    /// and `p₀` without it. `likeliest` are the likeliest tokens with probabilities that add up to 1, as they were at
    /// `strength` times the change; they become those with all of it.
    ///
    /// ```text
    /// δ[t] = W[t]·s·B·(A·h), within the bound       p₁ ∝ p·exp((1 - strength)·δ)        p₀ ∝ p·exp(-strength·δ)
    /// ```
    ///
    /// # Panics
    /// If a width differs.
    pub fn gain(
        &self,
        hidden: &[f32],
        (likeliest, strength): (&mut [(u32, f32)], f32),
        target: u32,
        head: &dyn HeadRows,
    ) -> f32 {
        let mut change = hidden.to_vec();
        self.forward(&mut change);
        change.iter_mut().zip(hidden).for_each(|(x, h)| *x -= h);
        let mut row = vec![0.0; self.n_embd];
        let mut delta = |token: u32| {
            head.row(token, &mut row);
            dot(&row, &change)
        };
        let (mut with, mut without) = (0.0, 0.0);
        let of_target = delta(target);
        for (token, p) in likeliest.iter_mut() {
            let delta = delta(*token);
            without += *p * (-strength * delta).exp();
            *p *= ((1.0 - strength) * delta).exp();
            with += *p;
        }
        likeliest.iter_mut().for_each(|(_, p)| *p /= with);
        of_target - (with / without).ln()
    }

    /// Computes the gradient of `-log p[target]` for a hidden state as it was before the change. `likeliest` are tokens
    /// with their probabilities: all of them for the exact gradient, the first tens for the sparse one. The target need
    /// not be among them; then its own probability counts as 0, which it nearly is.
    ///
    /// # Panics
    /// If a width differs.
    pub fn gradient(
        &self,
        hidden: &[f32],
        likeliest: &[(u32, f32)],
        target: u32,
        head: &dyn HeadRows,
        gradient: &mut Gradient,
    ) {
        assert_eq!(hidden.len(), self.n_embd, "a hidden state of {} values", hidden.len());
        assert_eq!(gradient.a.len(), self.a.len(), "the gradient is of another adapter");
        let Gradient { a, b, turned, hidden: g, row } = gradient;
        turned.clear();
        of_state(likeliest, target, head, g, row);
        let t = self.shrink(hidden);
        for (i, &t) in t.iter().take(self.rank).enumerate() {
            let range = i * self.n_embd..(i + 1) * self.n_embd;
            let from_b = self.scale * dot(&self.b[range.clone()], g);
            let (da, db) = (&mut a[range.clone()], &mut b[range]);
            da.iter_mut().zip(hidden).for_each(|(d, h)| *d = from_b * h);
            da.iter_mut().zip(&self.centre).for_each(|(d, c)| *d -= from_b * c);
            db.iter_mut().zip(&*g).for_each(|(d, g)| *d = self.scale * t * g);
        }
    }

    /// Prepares a gradient for [`MicroLora::update`], which does it otherwise: a product with the basis, some tens of microseconds
    /// that need not wait for the end of a request.
    pub fn prepare(&self, gradient: &mut Gradient) {
        if let Some(basis) = &self.basis {
            gradient.turn(basis);
        }
    }

    /// Goes a step against the gradient, which is clipped in place. One that holds something else than numbers changes
    /// nothing. Returns whether it was taken.
    pub fn update(&mut self, gradient: &mut Gradient, options: &UpdateOptions) -> bool {
        self.update_all(std::slice::from_mut(gradient), options) == 1
    }

    /// Goes a step against each of some gradients, one after the other, as [`MicroLora::update`] does; what `B` has in the basis is
    /// turned back once. Returns how many were taken.
    pub fn update_all(&mut self, gradients: &mut [Gradient], options: &UpdateOptions) -> usize {
        let n_before = self.n_updates;
        let basis = self.basis.clone();
        let mut steps = vec![0.0; basis.as_ref().map_or(0, |_| self.b.len())];
        for gradient in gradients {
            let norm = gradient.norm();
            if !norm.is_finite() {
                continue;
            }
            if norm > f64::from(options.clip) {
                gradient.shorten((f64::from(options.clip) / norm) as f32);
            }
            self.n_updates += 1;
            let (b, of_b) = match &basis {
                None => (&mut self.b, &gradient.b),
                Some(basis) => {
                    gradient.turn(basis);
                    self.b.iter_mut().for_each(|x| *x *= options.keep());
                    (&mut steps, &gradient.turned)
                }
            };
            self.moments.step(options, (&mut self.a, &gradient.a), (b, of_b));
        }
        if let Some(basis) = &basis {
            basis.add_back(&steps, &mut self.b);
        }
        (self.n_updates - n_before) as usize
    }

    /// Moves towards another one by an exponential mean: `x += (y - x)·share`.
    ///
    /// # Errors
    /// The other one has another shape.
    pub fn blend(&mut self, other: &MicroLora, share: f32) -> Result<(), LoraError> {
        if (other.n_embd, other.rank, &other.centre) != (self.n_embd, self.rank, &self.centre) {
            let line =
                format!("{} x {} cannot be blended with {} x {}", other.rank, other.n_embd, self.rank, self.n_embd);
            return Err(invalid(line));
        }
        let ratio = other.scale / self.scale;
        self.a.iter_mut().zip(&other.a).for_each(|(x, y)| *x += (y - *x) * share);
        self.b.iter_mut().zip(&other.b).for_each(|(x, y)| *x += (y * ratio - *x) * share);
        Ok(())
    }

    /// Returns `A` and `Bᵀ` to be changed: `[rank, n_embd]` each.
    pub fn factors_mut(&mut self) -> (&mut [f32], &mut [f32]) {
        (&mut self.a, &mut self.b)
    }

    /// Makes what this one can be merged into ([`MicroLora::absorb`]), of another rank; it changes nothing yet and does not learn.
    ///
    /// # Errors
    /// The rank is not 1 to [`BASE_RANK_MAX`].
    pub fn empty_base(&self, rank: usize) -> Result<MicroLora, LoraError> {
        check(self.n_embd, (rank, BASE_RANK_MAX), self.scale)?;
        let zeros = vec![0.0; rank * self.n_embd];
        Ok(self.of_factors(rank, (zeros.clone(), zeros), 0))
    }

    /// Merges another one into this: the change it makes becomes `keep` of its own and `share` of the other's, the best of this rank
    /// (by singular values) where the sum has more.
    ///
    /// # Errors
    /// The other one is of another width or centre.
    pub fn absorb(&mut self, keep: f32, other: &MicroLora, share: f32) -> Result<(), LoraError> {
        self.check_beside(other)?;
        let n_embd = self.n_embd;
        let (mut a, mut b): (Vec<f64>, Vec<&[f32]>) = (Vec::new(), Vec::new());
        let mut factors = Vec::new();
        for (one, factor) in [(&*self, keep), (other, share * other.scale / self.scale)] {
            for (row, column) in one.a.chunks_exact(n_embd).zip(one.b.chunks_exact(n_embd)) {
                // A rank that changes nothing has no direction.
                if factor != 0.0 && row.iter().any(|&x| x != 0.0) && column.iter().any(|&x| x != 0.0) {
                    a.extend(row.iter().copied().map(f64::from));
                    b.push(column);
                    factors.push(f64::from(factor));
                }
            }
        }
        let n = b.len();
        let at = |i: usize| b.iter().zip(&factors).map(move |(column, factor)| f64::from(column[i]) * factor);
        let product: Vec<f64> = (0..n_embd).flat_map(at).collect();
        let (a, b, n) = match n > self.rank {
            true => {
                let (a, b) = crate::merge::of_product(&a, &product, n, n_embd, self.rank);
                (a, b, self.rank)
            }
            false => (a, product, n),
        };
        self.a.fill(0.0);
        self.b.fill(0.0);
        self.a.iter_mut().zip(a).for_each(|(to, x)| *to = x as f32);
        for (i, row) in b.chunks_exact(n.max(1)).enumerate() {
            row.iter().enumerate().for_each(|(j, &x)| self.b[j * n_embd + i] = x as f32);
        }
        Ok(())
    }

    /// Makes what it changes smaller.
    pub fn fade(&mut self, factor: f32) {
        self.b.iter_mut().for_each(|x| *x *= factor);
    }

    /// Returns one that makes the changes of both; it does not learn.
    ///
    /// # Errors
    /// The other one is of another width or centre, or the ranks are too many.
    pub fn beside(&self, other: &MicroLora) -> Result<MicroLora, LoraError> {
        self.check_beside(other)?;
        let rank = self.rank + other.rank;
        check(self.n_embd, (rank, ALL_RANK_MAX), self.scale)?;
        let ratio = other.scale / self.scale;
        let a = [&self.a[..], &other.a].concat();
        let b = self.b.iter().copied().chain(other.b.iter().map(|x| x * ratio)).collect();
        Ok(self.of_factors(rank, (a, b), self.n_updates))
    }

    fn check_beside(&self, other: &MicroLora) -> Result<(), LoraError> {
        match (other.n_embd, &other.centre) == (self.n_embd, &self.centre) {
            true => Ok(()),
            false => Err(invalid(format!(
                "one of {} values beside one of {}, or of other centres",
                other.n_embd, self.n_embd
            ))),
        }
    }

    /// Returns everything as bytes, the optimiser's memory with it.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let numbers = [self.n_embd as u64, self.rank as u64, self.n_updates, u64::from(self.scale.to_bits())];
        numbers.iter().for_each(|x| bytes.extend(x.to_le_bytes()));
        for values in [&self.a, &self.b, &self.moments.a, &self.moments.b, &self.centre] {
            bytes.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|x| bytes.extend(x.to_le_bytes()));
        }
        bytes
    }

    /// Reads what [`MicroLora::snapshot`] gave: the same to the bit.
    ///
    /// # Errors
    /// The bytes are no snapshot, are cut off, or hold what is no number.
    pub fn restore(bytes: &[u8]) -> Result<MicroLora, LoraError> {
        let damaged = || invalid(format!("{} bytes are no snapshot of a MicroLoRA", bytes.len()));
        let mut rest = bytes.strip_prefix(&MAGIC).ok_or_else(damaged)?;
        let number = |rest: &mut &[u8]| -> Result<u64, LoraError> {
            let (head, tail) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
            *rest = tail;
            Ok(u64::from_le_bytes(*head))
        };
        let (n_embd, rank) = (number(&mut rest)? as usize, number(&mut rest)? as usize);
        let (n_updates, scale) = (number(&mut rest)?, f32::from_bits(number(&mut rest)? as u32));
        check(n_embd, (rank, ALL_RANK_MAX), scale)?;
        let mut all = [const { Vec::new() }; 5];
        for (i, values) in all.iter_mut().enumerate() {
            let n = number(&mut rest)? as usize;
            let whole = if i == 4 { n_embd } else { rank * n_embd };
            if n != whole && !(n == 0 && i >= 2) || rest.len() < 4 * n {
                return Err(damaged());
            }
            let (own, tail) = rest.split_at(4 * n);
            rest = tail;
            *values = own.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
            if values.iter().any(|x| !x.is_finite()) {
                return Err(LoraError::new(LoraErrorKind::Value, "the snapshot holds what is no finite number"));
            }
        }
        if !rest.is_empty() {
            return Err(damaged());
        }
        let [a, b, moments_a, moments_b, centre] = all;
        let moments = Moments { a: moments_a, b: moments_b };
        let (strength, moves_max) = (1.0, f32::INFINITY);
        Ok(MicroLora { n_embd, rank, scale, strength, moves_max, a, b, moments, n_updates, centre, basis: None })
    }

    /// Returns it as an ordinary adapter of the output head: `W·(h + s·B·A·h) = W·h + s·(W·B)·(A·h)`.
    ///
    /// # Errors
    /// The head's rows and it give what is no number, or it is centred: an adapter has no constant part.
    pub fn export(&self, name: &str, n_vocab: usize, head: &dyn HeadRows) -> Result<Adapter, LoraError> {
        if !self.centre.is_empty() {
            return Err(invalid("a centred MicroLoRA is no ordinary adapter, which has no constant part"));
        }
        let mut row = vec![0.0; self.n_embd];
        let mut b = Vec::with_capacity(n_vocab * self.rank);
        for token in 0..n_vocab {
            head.row(token as u32, &mut row);
            b.extend(self.b.chunks_exact(self.n_embd).map(|b| dot(b, &row)));
        }
        let pair = (Values::from_f32(self.rank, self.n_embd, &self.a), Values::from_f32(n_vocab, self.rank, &b));
        let adapter = Adapter::new(name, vec![Delta::new("output", self.scale, pair, None, RowOrder::Same)?])?;
        adapter.check_values()?;
        Ok(adapter)
    }
}

fn check(n_embd: usize, (rank, rank_max): (usize, usize), scale: f32) -> Result<(), LoraError> {
    if n_embd == 0 || n_embd > N_EMBD_MAX || rank == 0 || rank > rank_max {
        return Err(invalid(format!("a MicroLoRA of rank {rank} on {n_embd} values; its rank is 1 to {rank_max}")));
    }
    match scale.is_finite() && scale > 0.0 {
        true => Ok(()),
        false => Err(invalid(format!("a scale of {scale}; choose a positive number"))),
    }
}

#[cfg(test)]
mod tests;
