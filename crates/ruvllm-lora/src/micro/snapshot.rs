//! A MicroLoRA as bytes.

use std::sync::Arc;

use super::factors::Factors;
use super::optimizer::Moments;
use super::{ALL_RANK_MAX, MicroLora, N_INNER_MAX, Seat, check};
use crate::error::{LoraError, LoraErrorKind, invalid};

/// What a snapshot begins with, and what one began with before anything sat inside a block.
const MAGIC: [u8; 8] = *b"ruvmicr3";
const MAGIC_BEHIND: [u8; 8] = *b"ruvmicr2";

impl MicroLora {
    /// Returns everything as bytes, the optimiser's memory with it.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let numbers = [self.n_embd as u64, self.rank() as u64, self.n_updates, u64::from(self.scale.to_bits())];
        let (n_inner, rank) = self.inside.as_ref().map_or((0, 0), |inside| (inside.n_out, inside.rank()));
        let numbers = numbers.into_iter().chain([n_inner as u64, rank as u64]);
        numbers.for_each(|x| bytes.extend(x.to_le_bytes()));
        let mut write = |values: &[f32]| {
            bytes.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|x| bytes.extend(x.to_le_bytes()));
        };
        write(&self.centre);
        for factors in [&self.state].into_iter().chain(&self.inside) {
            [&factors.a, &factors.b, &factors.moments.a, &factors.moments.b].into_iter().for_each(|x| write(x));
        }
        bytes
    }

    /// Reads what [`MicroLora::snapshot`] gave: the same to the bit.
    ///
    /// # Errors
    /// The bytes are no snapshot, are cut off, or hold what is no number.
    pub fn restore(bytes: &[u8]) -> Result<MicroLora, LoraError> {
        let mut from = Bytes { all: bytes, rest: bytes };
        let is_behind = bytes.starts_with(&MAGIC_BEHIND);
        from.rest = bytes.strip_prefix(if is_behind { &MAGIC_BEHIND } else { &MAGIC }).ok_or_else(|| from.damaged())?;
        let (n_embd, rank) = (from.number()? as usize, from.number()? as usize);
        let (n_updates, scale) = (from.number()?, f32::from_bits(from.number()? as u32));
        check(n_embd, rank, ALL_RANK_MAX, scale)?;
        let (state, inside, centre);
        if is_behind {
            (state, inside) = (from.factors(rank, n_embd, n_embd)?, None);
            centre = from.values(&[n_embd, 0])?;
        } else {
            let (n_inner, rank_inside) = (from.number()? as usize, from.number()? as usize);
            if n_inner > N_INNER_MAX || rank_inside > ALL_RANK_MAX || (n_inner == 0) != (rank_inside == 0) {
                return Err(from.damaged());
            }
            centre = from.values(&[n_embd, 0])?;
            state = from.factors(rank, n_embd, n_embd)?;
            let factors = (n_inner > 0).then(|| from.factors(rank_inside, n_embd, n_inner));
            inside = factors.transpose()?.map(Arc::new);
        }
        if !from.rest.is_empty() {
            return Err(from.damaged());
        }
        let (state, strength, moves_max) = (Arc::new(state), 1.0, f32::INFINITY);
        let (seat, basis) = (Seat::default(), None);
        Ok(MicroLora { n_embd, scale, strength, moves_max, state, inside, seat, n_updates, centre, basis })
    }
}

/// What is left of a snapshot.
struct Bytes<'a> {
    all: &'a [u8],
    rest: &'a [u8],
}

impl Bytes<'_> {
    fn damaged(&self) -> LoraError {
        invalid(format!("{} bytes are no snapshot of a MicroLoRA", self.all.len()))
    }

    fn number(&mut self) -> Result<u64, LoraError> {
        let (head, tail) = self.rest.split_first_chunk::<8>().ok_or_else(|| self.damaged())?;
        self.rest = tail;
        Ok(u64::from_le_bytes(*head))
    }

    /// Reads values, of which there may be so many.
    fn values(&mut self, lengths: &[usize]) -> Result<Vec<f32>, LoraError> {
        let n = self.number()? as usize;
        if !lengths.contains(&n) || self.rest.len() < 4 * n {
            return Err(self.damaged());
        }
        let (own, tail) = self.rest.split_at(4 * n);
        self.rest = tail;
        let values: Vec<f32> = own.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
        match values.iter().all(|x| x.is_finite()) {
            true => Ok(values),
            false => Err(LoraError::new(LoraErrorKind::Value, "the snapshot holds what is no finite number")),
        }
    }

    fn factors(&mut self, rank: usize, n_in: usize, n_out: usize) -> Result<Factors, LoraError> {
        let (of_a, of_b) = (rank * n_in, rank * n_out);
        let (a, b) = (self.values(&[of_a])?, self.values(&[of_b])?);
        let moments = Moments { a: self.values(&[of_a, 0])?, b: self.values(&[of_b, 0])? };
        Ok(Factors { n_in, n_out, a, b, moments })
    }
}
