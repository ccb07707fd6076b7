//! MicroLoRA: an adapter of rank 1 to 4 at the end of a model, learned one token at a time.
//!
//! ```text
//! behind:     h' = h + s·B·(A·h)                  logits = W·h'         (or A·(h - c), see MicroLora::centred)
//! gradient:   g = Wᵀ·(p - y)      of the loss -log p[target]; p the softmax of the logits, y the target's one-hot
//!             ∂/∂B = s·g·(A·h)ᵀ   ∂/∂A = s·(Bᵀ·g)·hᵀ
//! sparse:     g ≈ Σ over the likeliest tokens, some that stand for the others, and the target of (p - y)·W[token]
//! inside:     h' = h + s·B·(A·h) + (what a second pair changes inside the last block, see FinalBlock)
//! ```
//! Behind the model all it needs are quantities that decoding has anyway: the hidden state, the probabilities, and rows of the head.
//! Inside the last block (docs/lab/microlora.md) it needs that block again, forwards and backwards, and reaches what nothing behind it does. The
//! exact gradient reads the whole head; the sparse one some tens of rows. `B` begins at zero and `A` at seeded noise, as in
//! Hu et al. 2021 (arXiv:2106.09685), so that nothing changes before something was learned.

mod basis;
mod block;
mod factors;
mod gain;
mod gradient;
mod logit_row;
mod merge;
mod optimizer;
mod snapshot;
#[cfg(any(test, feature = "toy"))]
pub mod toy;

pub use basis::Basis;
pub use block::{EachRow, FinalBlock, Inner, KeptRows, Seat, StateRows};
pub use gain::gain;
pub use gradient::{Gradient, of_state};
pub use logit_row::LogitRow;
pub use optimizer::{Rule, UpdateOptions};

use std::sync::Arc;

use crate::adapter::{Adapter, Delta, FactorPair, RowOrder, Values};
use crate::dot::dot;
use crate::error::{LoraError, invalid};
use factors::{Factors, Small};
use gradient::Pair;

/// The largest rank: more belongs into an adapter that is trained.
pub const MICRO_RANK_MAX: usize = 4;
/// The largest rank of what a MicroLoRA is merged into.
pub const BASE_RANK_MAX: usize = 8;
/// The largest rank of both together.
const ALL_RANK_MAX: usize = MICRO_RANK_MAX + BASE_RANK_MAX;
/// The widest hidden state and the widest inside of a block.
const N_EMBD_MAX: usize = 1 << 20;
const N_INNER_MAX: usize = 1 << 22;

/// Gives rows of the output head, to any thread.
pub trait HeadRows: Sync {
    /// Writes the row of a token: `[n_embd]`, as floats.
    fn row(&self, token: u32, out: &mut [f32]);

    /// Hints that a row will be asked for soon, so that it can be prefetched: rows lie anywhere in memory.
    fn expect(&self, token: u32) {
        let _ = token;
    }
}

/// A small adapter at the end of a model.
///
/// ```
/// use ruvllm_lora::micro::{HeadRows, MicroLora, StateRows, UpdateOptions};
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
///     micro.forward(StateRows { hidden: &hidden, stream: &[] }, &mut h);
///     head.0[token].iter().zip(h).map(|(w, h)| w * h).sum::<f32>()
/// };
/// for _ in 0..50 {
///     let logits = [0, 1, 2].map(|token| logit(&micro, token));
///     let sum: f32 = logits.iter().map(|x| x.exp()).sum();
///     let likeliest = [0u32, 1, 2].map(|token| (token, logits[token as usize].exp() / sum));
///     let state = StateRows { hidden: &hidden, stream: &[] };
///     micro.gradient(state, &likeliest, 2, &head, &mut gradient);
///     micro.update(&mut gradient, &options);
/// }
/// assert!(logit(&micro, 2) > logit(&micro, 0) + 2.0);
/// # Ok::<(), ruvllm_lora::LoraError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct MicroLora {
    n_embd: usize,
    scale: f32,
    /// How much of the change is made.
    strength: f32,
    /// How far a state is moved at most, of its distance from the centre.
    moves_max: f32,
    /// Behind the model.
    state: Arc<Factors>,
    /// Inside its last block.
    inside: Option<Arc<Factors>>,
    seat: Seat,
    n_updates: u64,
    /// `[n_embd]`, or nothing.
    centre: Vec<f32>,
    /// What steps of the state's `B` are taken in; `None`: as its values lie.
    basis: Option<Arc<Basis>>,
}

/// Hears of rows by how much their states are moved, and writes the gradients of what they become: `[n, n_embd]` both.
pub type Errors<'a> = dyn FnMut(&[f32], &mut [f32]) + 'a;

/// What is added inside a block to the rows of some MicroLoRAs, each so many.
struct Parts<'a>(&'a [(&'a MicroLora, usize)]);

impl Inner for Parts<'_> {
    fn add(&self, row: usize, x: &[f32], first: usize, values: &mut [f32]) {
        let mut end = 0;
        let part = self.0.iter().find(|(_, n)| {
            end += n;
            row < end
        });
        if let Some((micro, inside)) = part.and_then(|(micro, _)| Some((micro, micro.inside.as_ref()?))) {
            inside.expand(&inside.shrink(x).map(|t| micro.scale * t), first, values);
        }
    }
}

impl MicroLora {
    /// Makes one that changes nothing yet.
    ///
    /// # Errors
    /// The rank is not 1 to [`MICRO_RANK_MAX`], the width is 0, or the scale is not a positive number.
    pub fn new(n_embd: usize, rank: usize, scale: f32, seed: u64) -> Result<MicroLora, LoraError> {
        check(n_embd, rank, MICRO_RANK_MAX, scale)?;
        // A·h is about as long as a component of h.
        let factors = Factors::drawn(rank, n_embd, n_embd, (3.0 / n_embd as f32).sqrt(), seed);
        Ok(MicroLora {
            n_embd,
            scale,
            strength: 1.0,
            moves_max: f32::INFINITY,
            state: Arc::new(factors),
            inside: None,
            seat: Seat::default(),
            n_updates: 0,
            centre: Vec::new(),
            basis: None,
        })
    }

    /// Makes it sit inside a model's last block as well, where it begins if it has not. A snapshot leaves the block out, so that what was read of
    /// one is given it again.
    ///
    /// # Errors
    /// The block is of another width, or what it has learned is of another block.
    pub fn inside(mut self, block: Arc<dyn FinalBlock>) -> Result<MicroLora, LoraError> {
        let (n_embd, n_inner) = (block.n_embd(), block.n_inner());
        let fits = |inside: &Arc<Factors>| (inside.n_in, inside.n_out) == (n_embd, n_inner);
        if n_embd != self.n_embd || n_inner == 0 || n_inner > N_INNER_MAX || !self.inside.as_ref().is_none_or(fits) {
            let line = format!("a block of {n_embd} and {n_inner} values for states of {}", self.n_embd);
            return Err(invalid(line));
        }
        if self.inside.is_none() {
            // A·x is about as large as 1.
            let bound = (3.0 / n_embd as f32).sqrt() / block.x_size().max(f32::MIN_POSITIVE);
            self.inside = Some(Arc::new(Factors::drawn(self.rank(), n_embd, n_inner, bound, 0)));
        }
        self.seat = Seat(Some(block));
        Ok(self)
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

    /// Makes it begin with other rows of the state's `A` than drawn ones: `[rank, n_embd]`. `B` stays, so what has learned nothing changes nothing.
    ///
    /// # Errors
    /// They are of another shape, or hold what is no finite number.
    pub fn along(mut self, rows: &[f32]) -> Result<MicroLora, LoraError> {
        if rows.len() != self.state.a.len() || rows.iter().any(|x| !x.is_finite()) {
            let line = format!("{} values, or not of numbers, for {} rows of {}", rows.len(), self.rank(), self.n_embd);
            return Err(invalid(line));
        }
        Arc::make_mut(&mut self.state).a.copy_from_slice(rows);
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

    /// Makes it take its steps of the state's `B` in a basis: see [`Basis`]. What it changes stays the same. A snapshot leaves the basis out.
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

    /// Returns the rank of what changes final states.
    pub fn rank(&self) -> usize {
        self.state.rank()
    }

    /// Returns how often it was updated.
    pub fn n_updates(&self) -> u64 {
        self.n_updates
    }

    /// Returns whether it sits inside the model's last block too, and so reads [`StateRows::stream`].
    pub fn is_inside(&self) -> bool {
        self.seat.0.is_some()
    }

    /// Returns `A`: `[rank, n_embd]`, and `Bᵀ`: `[rank, n_embd]`, of what changes final states.
    pub fn factors(&self) -> (&[f32], &[f32]) {
        (&self.state.a, &self.state.b)
    }

    /// Returns `A` and `Bᵀ` of what changes final states, to be changed: `[rank, n_embd]` each.
    pub fn factors_mut(&mut self) -> (&mut [f32], &mut [f32]) {
        let Factors { a, b, .. } = Arc::make_mut(&mut self.state);
        (a, b)
    }

    /// Iterates over all that learns: both factors of the state, then both of those inside the last block.
    pub fn values(&self) -> impl Iterator<Item = &[f32]> + Clone {
        [&self.state].into_iter().chain(&self.inside).flat_map(|factors| [&factors.a[..], &factors.b[..]])
    }

    /// Iterates over the values, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let all = [&mut self.state].into_iter().chain(&mut self.inside).map(Arc::make_mut);
        all.flat_map(|factors| [&mut factors.a[..], &mut factors.b[..]])
    }

    /// Returns what a gradient is computed in, of zeros.
    pub fn gradient_buffer(&self) -> Gradient {
        let zeros = |factors: &Factors| Pair::zeros(factors.rank(), factors.n_in, factors.n_out);
        Gradient { state: zeros(&self.state), inside: self.inside.as_deref().map(zeros), weight: 1.0 }
    }

    /// Returns a state less the centre, and `A` times that.
    fn shrink(&self, hidden: &[f32]) -> (Vec<f32>, Small) {
        let mut x = hidden.to_vec();
        x.iter_mut().zip(&self.centre).for_each(|(x, c)| *x -= c);
        let t = self.state.shrink(&x);
        (x, t)
    }

    /// Changes final states: those of `rows`, `[n, n_embd]`, become `out`.
    ///
    /// # Panics
    /// If a length does not fit.
    pub fn forward(&self, rows: StateRows<'_>, out: &mut [f32]) {
        MicroLora::forward_each(&[(self, rows.hidden.len() / self.n_embd)], rows, out);
    }

    /// Computes the rows of several, each so many, one behind the other: the block is gone through once for all.
    ///
    /// # Panics
    /// If a length does not fit, or they sit inside different blocks.
    pub fn forward_each(parts: &[(&MicroLora, usize)], rows: StateRows<'_>, out: &mut [f32]) {
        match parts.first().and_then(|(first, _)| first.seat.0.as_ref()) {
            Some(block) => block.forward(rows.stream, &Parts(parts), &mut vec![0.0; out.len()], out),
            None => out.fill(0.0),
        }
        MicroLora::complete_each(parts, rows.hidden, out);
    }

    /// Computes rows that have not been through the block they all sit inside of: `hidden` become their states, to the bit what the model
    /// makes of `stream`, and `out` the changed ones, `[n, n_embd]` each.
    ///
    /// # Panics
    /// If a length does not fit, or they do not sit inside one block.
    pub fn forward_through(parts: &[(&MicroLora, usize)], stream: &[f32], hidden: &mut [f32], out: &mut [f32]) {
        let block = parts.first().and_then(|(first, _)| first.seat.0.as_ref()).expect("a block to go through");
        block.forward(stream, &Parts(parts), hidden, out);
        MicroLora::complete_each(parts, hidden, out);
    }

    /// Makes of what is changed inside the block of some rows the changed states.
    fn complete_each(parts: &[(&MicroLora, usize)], hidden: &[f32], out: &mut [f32]) {
        let n: usize = parts.iter().map(|(_, n)| n).sum();
        let Some((first, _)) = parts.first().filter(|_| n > 0) else { return };
        let n_embd = first.n_embd;
        assert!(hidden.len() == n * n_embd && out.len() == n * n_embd, "{n} rows of {n_embd} values");
        let mut all = hidden.chunks_exact(n_embd).zip(out.chunks_exact_mut(n_embd));
        for (micro, n) in parts {
            assert!(micro.seat == first.seat, "MicroLoRAs inside different blocks");
            for (hidden, out) in all.by_ref().take(*n) {
                let share = micro.strength * micro.complete(hidden, out);
                out.iter_mut().zip(hidden).for_each(|(x, h)| *x = h + share * *x);
            }
        }
    }

    /// Adds to what is changed inside the block what is changed of a state behind it. Returns what of all that is within the bound: 1 if all
    /// of it is.
    fn complete(&self, hidden: &[f32], change: &mut [f32]) -> f32 {
        let (x, t) = self.shrink(hidden);
        self.state.expand(&t.map(|t| self.scale * t), 0, change);
        if self.moves_max.is_infinite() {
            return 1.0;
        }
        let moves = dot(change, change);
        let most = self.moves_max * self.moves_max * dot(&x, &x);
        if moves > most { (most / moves).sqrt() } else { 1.0 }
    }

    /// Returns one that makes the same change times a factor, of the same factors; it does not learn.
    ///
    /// # Panics
    /// If the factor is no positive number.
    pub fn weakened(&self, factor: f32) -> MicroLora {
        assert!(factor.is_finite() && factor > 0.0, "a change times {factor}");
        MicroLora { strength: self.strength * factor, basis: None, ..self.clone() }
    }

    /// Learns from rows whose states `served` changes, this one or a sum of it and others: `errors` gets by how much all of that moves
    /// them, within the bound, and writes the gradients of the changed states, `[n, n_embd]` both; what follows for the factors of this one
    /// is added to `gradient`, times a factor. Gradients are those of the whole change.
    ///
    /// # Panics
    /// If a length does not fit.
    pub fn learn(
        &self,
        served: &MicroLora,
        rows: StateRows<'_>,
        errors: &mut Errors<'_>,
        gradient: &mut Gradient,
        factor: f32,
    ) {
        let (n_embd, scale) = (self.n_embd, self.scale * factor);
        let Gradient { state, inside, .. } = gradient;
        state.turned.clear();
        let mut behind = |differences: &[f32], gradients: &mut [f32]| {
            let mut changes = differences.to_vec();
            for (hidden, change) in rows.hidden.chunks_exact(n_embd).zip(changes.chunks_exact_mut(n_embd)) {
                let share = served.complete(hidden, change);
                change.iter_mut().for_each(|x| *x *= share);
            }
            errors(&changes, gradients);
            for (hidden, g) in rows.hidden.chunks_exact(n_embd).zip(gradients.chunks_exact(n_embd)) {
                let (x, t) = self.shrink(hidden);
                self.state.add_gradient(&x, &t, g, scale, state);
            }
        };
        match (&served.seat.0, &self.inside, inside) {
            (Some(block), Some(factors), Some(sum)) => {
                let parts = [(served, rows.hidden.len() / n_embd)];
                block.backward(rows.stream, &Parts(&parts), &mut behind, &mut |_, x, d| {
                    factors.add_gradient(x, &factors.shrink(x), d, scale, sum);
                });
            }
            _ => behind(&vec![0.0; rows.hidden.len()], &mut vec![0.0; rows.hidden.len()]),
        }
    }

    /// Computes the gradient of `-log p[target]` for one state. `likeliest` are tokens
    /// with their probabilities: all of them for the exact gradient, some for the sparse one. The target need
    /// not be among them; then its own probability counts as 0, which it nearly is.
    ///
    /// # Panics
    /// If a width differs.
    pub fn gradient(
        &self,
        state: StateRows<'_>,
        likeliest: &[(u32, f32)],
        target: u32,
        head: &dyn HeadRows,
        gradient: &mut Gradient,
    ) {
        assert_eq!(state.hidden.len(), self.n_embd, "a hidden state of {} values", state.hidden.len());
        gradient.clear();
        let mut row = vec![0.0; self.n_embd];
        let mut errors = |_: &[f32], g: &mut [f32]| of_state(likeliest, target, head, g, &mut row);
        self.learn(self, state, &mut errors, gradient, 1.0);
    }

    /// Prepares a gradient for [`MicroLora::update`], which does it otherwise: a product with the basis, some tens of microseconds
    /// that need not wait for the end of a request.
    pub fn prepare(&self, gradient: &mut Gradient) {
        if let Some(basis) = &self.basis {
            gradient.state.turn(basis);
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
        let (state, basis) = (Arc::make_mut(&mut self.state), self.basis.as_deref());
        let mut steps = vec![0.0; basis.map_or(0, |_| state.b.len())];
        for gradient in gradients {
            // Each is shortened by itself: both are taken, or none.
            if ![&mut gradient.state].into_iter().chain(&mut gradient.inside).all(|pair| pair.clip(options.clip)) {
                continue;
            }
            self.n_updates += 1;
            state.step(&mut gradient.state, options, basis, &mut steps);
            if let (Some(inside), Some(gradient)) = (&mut self.inside, &mut gradient.inside) {
                Arc::make_mut(inside).step(gradient, options, None, &mut []);
            }
        }
        if let Some(basis) = basis {
            basis.add_back(&steps, &mut state.b);
        }
        (self.n_updates - n_before) as usize
    }

    /// Returns it as an ordinary adapter of the output head: `W·(h + s·B·A·h) = W·h + s·(W·B)·(A·h)`.
    ///
    /// # Errors
    /// The head's rows and it give what is no number, or it is no such adapter: centred, or inside the last block.
    pub fn export(&self, name: &str, n_vocab: usize, head: &dyn HeadRows) -> Result<Adapter, LoraError> {
        if !self.centre.is_empty() || self.inside.is_some() {
            let line = "a MicroLoRA that is centred or inside the last block is no ordinary adapter of the head";
            return Err(invalid(line));
        }
        let (mut row, rank) = (vec![0.0; self.n_embd], self.rank());
        let mut b = Vec::with_capacity(n_vocab * rank);
        for token in 0..n_vocab {
            head.row(token as u32, &mut row);
            b.extend(self.state.b.chunks_exact(self.n_embd).map(|b| dot(b, &row)));
        }
        let pair = FactorPair {
            a: Values::from_f32(rank, self.n_embd, &self.state.a),
            b: Values::from_f32(n_vocab, rank, &b),
        };
        let adapter = Adapter::new(name, vec![Delta::new("output", self.scale, pair, None, RowOrder::Same)?])?;
        adapter.check_values()?;
        Ok(adapter)
    }
}

fn check(n_embd: usize, rank: usize, rank_max: usize, scale: f32) -> Result<(), LoraError> {
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
