//! What a model says of plain text that it was not taught: keys are whitened by it, and λ is fitted on it.

use std::sync::Arc;

use ruvllm_kernels::Isa;
use ruvllm_kernels::softmax;
use ruvllm_lora::micro::{Basis, FinalBlock, HeadRows, Seat, of_state};

use crate::codec::{Reader, Writer};
use crate::eigen;
use crate::error::{SonaError, SonaErrorKind};
use crate::interpolation::Confidence;
use crate::top::Top;
use crate::whiten::{Key, N_EMBD_MAX, Whitener};

/// What a snapshot begins with.
const MAGIC: [u8; 8] = *b"ruvcali1";
/// Likeliest tokens that are kept of a distribution.
const N_LIKELIEST: usize = 16;
/// The most positions a snapshot is read of.
const N_POSITIONS_MAX: usize = 1 << 20;
/// One position in this many has a gradient that the basis is fitted to.
const GRADIENT_STRIDE: usize = 4;

/// A place in a text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Position {
    pub key: Key,
    /// Whether a text begins here.
    pub starts: bool,
    /// The token that followed, and its log probability.
    pub token: u32,
    pub log_p: f32,
    /// Likeliest tokens with their log probabilities, the likeliest first.
    pub likeliest: Vec<(u32, f32)>,
}

impl Position {
    /// Returns what the model says, where the datastore's likeliest token is this one. A token that is not among the likeliest
    /// counts as likely as the last of them.
    pub(crate) fn confidence(&self, recalled: u32) -> Confidence {
        let first = self.likeliest.first().copied().unwrap_or((0, 0.0));
        let found = self.likeliest.iter().find(|(token, _)| *token == recalled).or(self.likeliest.last());
        Confidence { log_p_max: first.1, likeliest: first.0, log_p_knn: found.map_or(first.1, |&(_, log_p)| log_p) }
    }
}

/// A model's text for calibration: [`CalibrationBuilder`] makes it once in a model's life.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    whitener: Whitener,
    positions: Vec<Position>,
    basis: Option<Arc<Basis>>,
    seat: Seat,
}

impl Calibration {
    /// Returns what makes keys.
    pub fn whitener(&self) -> &Whitener {
        &self.whitener
    }

    /// Returns what a MicroLoRA takes its steps in, if it was given.
    pub fn basis(&self) -> Option<&Arc<Basis>> {
        self.basis.as_ref()
    }

    /// Goes on with what a MicroLoRA takes its steps in. It is of [`Calibration::fit_basis`], and no part of a snapshot.
    ///
    /// # Errors
    /// It is of another width.
    pub fn with_basis(mut self, basis: Arc<Basis>) -> Result<Calibration, SonaError> {
        let (n, n_embd) = (basis.n_embd(), self.whitener.n_embd());
        if n != n_embd {
            return Err(SonaError::new(SonaErrorKind::Shape, format!("a basis of {n} values for states of {n_embd}")));
        }
        self.basis = Some(basis);
        Ok(self)
    }

    /// Returns the model's last block, if it was given.
    pub fn seat(&self) -> &Seat {
        &self.seat
    }

    /// Goes on with the model's last block, for a MicroLoRA to sit inside. It is no part of a snapshot.
    ///
    /// # Errors
    /// It is of another width.
    pub fn with_block(mut self, block: Arc<dyn FinalBlock>) -> Result<Calibration, SonaError> {
        let (n, n_embd) = (block.n_embd(), self.whitener.n_embd());
        if n != n_embd {
            return Err(SonaError::new(SonaErrorKind::Shape, format!("a block of {n} values for states of {n_embd}")));
        }
        self.seat = Seat(Some(block));
        Ok(self)
    }

    /// Fits the basis in which the values of a gradient of the final hidden state have least to do with each other: the
    /// eigenvectors of what gradients of this text have in common, by the likeliest tokens that are kept of it.
    ///
    /// Cost: the rows of these tokens, and some tens of `n_embd³` operations; a second for 576.
    ///
    /// # Errors
    /// The head's rows are no finite numbers.
    pub fn fit_basis(&self, head: &dyn HeadRows, isa: Isa) -> Result<Basis, SonaError> {
        let n = self.whitener.n_embd();
        let (mut gradient, mut row, mut sums) = (vec![0.0; n], vec![0.0; n], vec![0.0; n * n]);
        for position in self.positions.iter().step_by(GRADIENT_STRIDE) {
            let all: f32 = position.likeliest.iter().map(|&(_, log_p)| log_p.exp()).sum();
            let likeliest: Vec<_> = position.likeliest.iter().map(|&(token, p)| (token, p.exp() / all)).collect();
            of_state(&likeliest, position.token, head, &mut gradient, &mut row);
            eigen::add_square(&mut sums, &gradient, 1.0);
        }
        eigen::mirror(&mut sums, n);
        let (_, directions) = eigen::symmetric(sums, n);
        Ok(Basis::new(n, &directions, isa)?)
    }

    /// Returns the number of positions that λ is fitted on.
    pub fn len(&self) -> usize {
        self.positions.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    pub(crate) fn positions(&self) -> &[Position] {
        &self.positions
    }

    /// Returns everything as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Writer::of(MAGIC);
        out.part(&self.whitener.snapshot());
        out.u64(self.positions.len() as u64);
        for position in &self.positions {
            let n = position.likeliest.len();
            out.plain_u32s(&[u32::from(position.starts), position.token, n as u32]);
            out.i8s(&position.key.bytes);
            out.plain_f32s(&[position.key.scale, position.log_p]);
            position.likeliest.iter().for_each(|&(token, _)| _ = out.plain_u32s(&[token]));
            position.likeliest.iter().for_each(|&(_, log_p)| _ = out.plain_f32s(&[log_p]));
        }
        out.take()
    }

    /// Reads what [`Calibration::snapshot`] gave.
    ///
    /// # Errors
    /// The bytes are damaged, or of another version.
    pub fn restore(bytes: &[u8]) -> Result<Calibration, SonaError> {
        let mut from = Reader::of(bytes, MAGIC, "calibration")?;
        let whitener = Whitener::restore(from.part()?)?;
        let n = from.number(N_POSITIONS_MAX)?;
        let mut positions = Vec::new();
        for _ in 0..n {
            let head = from.plain_u32s(3)?;
            let (starts, token, n_likeliest) = (head[0] != 0, head[1], head[2] as usize);
            if n_likeliest > N_LIKELIEST {
                return Err(from.invalid(format_args!("{n_likeliest} likeliest tokens")));
            }
            let bytes = from.i8s(whitener.n_key())?;
            let key = Key { bytes, scale: from.f32()? };
            let log_p = from.f32()?;
            let tokens = from.plain_u32s(n_likeliest)?;
            let likeliest = tokens.into_iter().zip(from.plain_f32s(n_likeliest)?).collect();
            positions.push(Position { key, starts, token, log_p, likeliest });
        }
        from.end()?;
        Ok(Calibration { whitener, positions, basis: None, seat: Seat::default() })
    }
}

/// Gathers what a model says of texts.
#[derive(Debug)]
pub struct CalibrationBuilder {
    n_embd: usize,
    isa: Isa,
    hidden: Vec<f32>,
    positions: Vec<Position>,
    top: Top,
}

impl CalibrationBuilder {
    /// Begins, for final hidden states of `n_embd` values.
    ///
    /// # Errors
    /// The width is 0 or beyond what is read.
    pub fn new(n_embd: usize, isa: Isa) -> Result<CalibrationBuilder, SonaError> {
        if n_embd == 0 || n_embd > N_EMBD_MAX {
            return Err(SonaError::new(SonaErrorKind::Shape, format!("hidden states of {n_embd} values")));
        }
        Ok(CalibrationBuilder { n_embd, isa, hidden: Vec::new(), positions: Vec::new(), top: Top::default() })
    }

    /// Takes a position: its hidden state, `[n_embd]`, its logits, `[n_vocab]`, the token that followed, and whether a text
    /// begins here.
    ///
    /// # Panics
    /// If the state has another width, or the token has no logit.
    pub fn push(&mut self, hidden: &[f32], logits: &[f32], token: u32, starts: bool) {
        assert_eq!(hidden.len(), self.n_embd, "a hidden state of {} values", hidden.len());
        let log_sum = softmax::pick(self.isa).log_sum_exp(logits) as f32;
        let likeliest = self.top.of(logits, N_LIKELIEST).iter().map(|hit| (hit.index, hit.value - log_sum)).collect();
        let log_p = logits[token as usize] - log_sum;
        self.hidden.extend_from_slice(hidden);
        self.positions.push(Position { key: Key::default(), starts, token, log_p, likeliest });
    }

    /// Fits the whitening and makes the keys, of at most `n_key` values.
    ///
    /// # Errors
    /// As [`Whitener::fit`].
    pub fn finish(mut self, n_key: usize) -> Result<Calibration, SonaError> {
        let whitener = Whitener::fit(&self.hidden, self.n_embd, n_key, 0.25)?;
        for (position, hidden) in self.positions.iter_mut().zip(self.hidden.chunks_exact(self.n_embd)) {
            position.key = whitener.key(hidden, self.isa);
        }
        Ok(Calibration { whitener, positions: self.positions, basis: None, seat: Seat::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_the_same_and_damage_is_told() {
        let mut builder = CalibrationBuilder::new(64, Isa::best()).expect("a width");
        for i in 0..90 {
            let hidden: Vec<f32> = (0..64).map(|k| ((i * 31 + k * 17) as f32 * 0.7).sin()).collect();
            let logits: Vec<f32> = (0..40).map(|t| ((i * 7 + t * 3) as f32 * 0.4).cos() * 3.0).collect();
            builder.push(&hidden, &logits, i as u32 % 40, i % 30 == 0);
        }
        let calibration = builder.finish(64).expect("states");
        let position = &calibration.positions()[7];
        assert_eq!((calibration.len(), position.likeliest.len()), (90, N_LIKELIEST));
        assert!(position.likeliest.is_sorted_by(|a, b| a.1 >= b.1) && position.likeliest[0].1 < 0.0);
        let confidence = position.confidence(position.likeliest[3].0);
        assert_eq!(confidence.log_p_knn, position.likeliest[3].1);
        assert_eq!(position.confidence(999).log_p_knn, position.likeliest[N_LIKELIEST - 1].1);
        let bytes = calibration.snapshot();
        assert_eq!(Calibration::restore(&bytes).expect("a snapshot"), calibration);
        for cut in [0, 8, 16, 60, bytes.len() / 2, bytes.len() - 1] {
            assert!(Calibration::restore(&bytes[..cut]).is_err(), "{cut} bytes");
        }
        assert!(CalibrationBuilder::new(0, Isa::best()).is_err());
    }
}
