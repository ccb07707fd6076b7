//! The last block of a model, for a MicroLoRA that sits inside it.
//!
//! ```text
//! x = norm(stream)      u = W·x + B·(A·x)      final state = norm'(stream + down(act(u)))       W: gate and up, one below the other
//! ```
//! What a model's own weights are is the engine's business. Here is what learning asks of them, in both directions.

use std::fmt;
use std::sync::Arc;

/// Final hidden states, and the rows of the stream that the last block made them of: `[n, n_embd]` each.
#[derive(Clone, Copy, Debug, Default)]
pub struct StateRows<'a> {
    /// Behind the final norm, before any MicroLoRA.
    pub hidden: &'a [f32],
    /// Before the last block's feed-forward part; empty where nothing sits inside it.
    pub stream: &'a [f32],
}

impl<'a> StateRows<'a> {
    /// Returns row `i` of rows of `n_embd` values.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, i: usize, n_embd: usize) -> StateRows<'a> {
        self.rows(i..i + 1, n_embd)
    }

    /// Returns some rows; of a backend that shows none, none.
    ///
    /// # Panics
    /// If there are others, and no such rows.
    pub fn rows(&self, range: std::ops::Range<usize>, n_embd: usize) -> StateRows<'a> {
        if self.hidden.is_empty() {
            return *self;
        }
        let at = range.start * n_embd..range.end * n_embd;
        let stream = if self.stream.is_empty() { self.stream } else { &self.stream[at.clone()] };
        StateRows { hidden: &self.hidden[at], stream }
    }

    /// Returns the first `n` rows, and those behind them.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_at(&self, n: usize, n_embd: usize) -> (StateRows<'a>, StateRows<'a>) {
        (self.rows(0..n, n_embd), self.rows(n..self.hidden.len() / n_embd.max(1), n_embd))
    }

    /// Iterates over its rows.
    pub fn iter(&self, n_embd: usize) -> impl Iterator<Item = StateRows<'a>> + use<'a> {
        let all = *self;
        (0..self.hidden.len() / n_embd.max(1)).map(move |i| all.row(i, n_embd))
    }
}

/// Rows that are kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeptRows {
    hidden: Vec<f32>,
    stream: Vec<f32>,
}

impl KeptRows {
    /// Keeps rows behind those that are there.
    pub fn push(&mut self, rows: StateRows<'_>) {
        self.hidden.extend_from_slice(rows.hidden);
        self.stream.extend_from_slice(rows.stream);
    }

    /// Returns them.
    pub fn rows(&self) -> StateRows<'_> {
        StateRows { hidden: &self.hidden, stream: &self.stream }
    }

    /// Lets them go, and keeps their memory.
    pub fn clear(&mut self) {
        self.hidden.clear();
        self.stream.clear();
    }
}

impl From<StateRows<'_>> for KeptRows {
    fn from(rows: StateRows<'_>) -> KeptRows {
        KeptRows { hidden: rows.hidden.to_vec(), stream: rows.stream.to_vec() }
    }
}

/// Addend to the block's first products.
pub trait Inner: Sync {
    /// Adds to values from `first` on of row `row`, whose input is `x`: `[n_embd]`.
    fn add(&self, row: usize, x: &[f32], first: usize, values: &mut [f32]);
}

/// Nothing is added.
impl Inner for () {
    fn add(&self, _: usize, _: &[f32], _: usize, _: &mut [f32]) {}
}

/// A row on the way back: its number, what its first products read, `[n_embd]`, and the gradient of what they gave, `[n_inner]`.
pub type EachRow<'a> = dyn FnMut(usize, &[f32], &[f32]) + 'a;

/// The last block of a model with the final norm behind it.
pub trait FinalBlock: Send + Sync {
    /// Width of the stream and of final states.
    fn n_embd(&self) -> usize;

    /// How many values a row's first products give.
    fn n_inner(&self) -> usize;

    /// How large a value of what they read is, about.
    fn x_size(&self) -> f32;

    /// Writes the final states of rows of the stream without what `inner` adds, to the bit what the model makes of them, and by how much
    /// that moves them: `[n, n_embd]` both.
    ///
    /// # Panics
    /// If a length does not fit.
    fn forward(&self, stream: &[f32], inner: &dyn Inner, states: &mut [f32], differences: &mut [f32]);

    /// Goes forwards, and back: `errors` gets the differences and writes the gradients of the changed states, `[n, n_embd]` both; `each` hears what
    /// follows for every row.
    ///
    /// # Panics
    /// If a length does not fit.
    fn backward(
        &self,
        stream: &[f32],
        inner: &dyn Inner,
        errors: &mut dyn FnMut(&[f32], &mut [f32]),
        each: &mut EachRow<'_>,
    );
}

/// A model's last block, for what may sit inside it; `None` where nothing can.
#[derive(Clone, Default)]
pub struct Seat(pub Option<Arc<dyn FinalBlock>>);

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = self.0.as_ref().map(|block| (block.n_embd(), block.n_inner()));
        f.debug_tuple("Seat").field(&shape).finish()
    }
}

impl PartialEq for Seat {
    /// Compares which block it is.
    fn eq(&self, other: &Seat) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(two)) => Arc::ptr_eq(one, two),
            (one, two) => one.is_none() == two.is_none(),
        }
    }
}
