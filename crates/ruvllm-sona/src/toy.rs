//! A model for tests that reads one token at a time and knows nothing.

use std::sync::Arc;

use ruvllm_kernels::{Isa, softmax};
use ruvllm_lora::micro::toy::Squares;
use ruvllm_lora::micro::{HeadRows, MicroLora, StateRows};

use crate::calibration::{Calibration, CalibrationBuilder};
use crate::instant::{LearnOptions, Learned, RequestTrace};

/// Width of a state.
pub(crate) const N_EMBD: usize = 64;
/// Tokens.
pub(crate) const N_VOCAB: usize = 40;

/// The head in memory, and states that say which token was read.
pub(crate) struct Toy {
    pub(crate) head: Vec<f32>,
    pub(crate) calibration: Arc<Calibration>,
    /// Adapter that a history had it adopt last.
    pub(crate) adopted: Option<Vec<u8>>,
}

impl HeadRows for Toy {
    fn row(&self, token: u32, out: &mut [f32]) {
        out.copy_from_slice(&self.head[token as usize * N_EMBD..][..N_EMBD]);
    }
}

/// Returns a state as it is without a MicroLoRA, which is the row of the stream as well.
pub(crate) fn one(hidden: &[f32]) -> StateRows<'_> {
    StateRows { hidden, stream: hidden }
}

/// Returns a state as a MicroLoRA makes it.
pub(crate) fn changed(hidden: &[f32], micro: Option<&MicroLora>) -> Vec<f32> {
    let mut changed = hidden.to_vec();
    micro.iter().for_each(|micro| micro.forward(one(hidden), &mut changed));
    changed
}

pub(crate) fn state(token: u32) -> Vec<f32> {
    (0..N_EMBD).map(|i| 2.0 + ((i * 13 + 7) as f32 * (token + 3) as f32 * 0.37).sin()).collect()
}

impl Toy {
    pub(crate) fn new() -> Toy {
        let head: Vec<f32> = (0..N_VOCAB * N_EMBD).map(|i| (i as f32 * 1.37).sin() * 0.2).collect();
        let mut builder = CalibrationBuilder::new(N_EMBD, Isa::best()).expect("a width");
        for i in 0..400u32 {
            let hidden = state(i * 7 % N_VOCAB as u32);
            let logits = logits(&head, &hidden);
            builder.push(&hidden, &logits, i * 11 % N_VOCAB as u32, i % 100 == 0);
        }
        let calibration = Arc::new(builder.finish(N_EMBD).expect("states"));
        let mut toy = Toy { head, calibration, adopted: None };
        let basis = toy.calibration.fit_basis(&toy, Isa::best()).expect("a head");
        let calibration = Calibration::clone(&toy.calibration).with_basis(Arc::new(basis));
        // Its stream is the final state.
        let block = Squares { n_embd: N_EMBD, n_inner: N_EMBD, square: 0.05, x_size: 2.0 };
        let calibration = calibration.and_then(|calibration| calibration.with_block(Arc::new(block)));
        toy.calibration = Arc::new(calibration.expect("a width"));
        toy
    }

    pub(crate) fn learned(&self, options: LearnOptions) -> Learned {
        Learned::new(Arc::clone(&self.calibration), options, Isa::best()).expect("options")
    }

    /// Reads a text and returns the mean of -ln p, and the bits of all adjusted rows.
    pub(crate) fn read(&self, learned: &Learned, trace: &mut RequestTrace, text: &[u32]) -> (f64, Vec<u32>) {
        let (mut nll, mut bits) = (0.0, Vec::new());
        for pair in text.windows(2) {
            let hidden = state(pair[0]);
            trace.begin(learned);
            let mut row = logits(&self.head, &changed(&hidden, trace.micro().map(|micro| &**micro)));
            trace.adjust(learned, one(&hidden), &mut row);
            nll -= f64::from(log_p(&row, pair[1]));
            bits.extend(row.iter().map(|x| x.to_bits()));
            trace.accept(learned, pair[1], self);
        }
        (nll / (text.len() - 1) as f64, bits)
    }

    pub(crate) fn learn(&self, learned: &mut Learned, text: &[u32], quality: f32) -> f64 {
        let mut trace = RequestTrace::default();
        let (nll, _) = self.read(learned, &mut trace, text);
        learned.ingest(trace, quality);
        learned.rehearse(usize::MAX);
        nll
    }
}

pub(crate) fn logits(head: &[f32], hidden: &[f32]) -> Vec<f32> {
    head.chunks_exact(N_EMBD).map(|row| row.iter().zip(hidden).map(|(w, h)| w * h).sum()).collect()
}

/// Logits of fewer bits.
pub(crate) fn approx(row: &[f32]) -> Vec<f32> {
    row.iter().map(|x| (4.0 * x).round() / 4.0).collect()
}

/// Leaves out, as a screen does, some that are far below the likeliest.
pub(crate) fn leave_out(row: &mut [f32], seed: usize) {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let far = row.iter_mut().enumerate().filter(|(i, x)| !(i + seed).is_multiple_of(3) && **x < max - 1.5);
    far.for_each(|(_, x)| *x = f32::NEG_INFINITY);
}

pub(crate) fn log_p(row: &[f32], token: u32) -> f32 {
    row[token as usize] - softmax::pick(Isa::best()).log_sum_exp(row) as f32
}

pub(crate) fn text(seed: u32) -> Vec<u32> {
    (0..120).map(|i: u32| (i % 17 * (seed + 5) + i % 3) % N_VOCAB as u32).collect()
}
