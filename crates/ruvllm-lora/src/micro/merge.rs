//! Several MicroLoRAs as one: blended, merged into a base behind one, or side by side.

use std::sync::Arc;

use super::factors::Factors;
use super::{ALL_RANK_MAX, BASE_RANK_MAX, MicroLora, check};
use crate::error::{LoraError, invalid};

impl MicroLora {
    /// Moves towards another one by an exponential mean: `x += (y - x)·share`.
    ///
    /// # Errors
    /// The other one has another shape.
    pub fn blend(&mut self, other: &MicroLora, share: f32) -> Result<(), LoraError> {
        let shape = |micro: &MicroLora| (micro.n_embd, micro.values().map(<[f32]>::len).collect::<Vec<_>>());
        if shape(other) != shape(self) || other.centre != self.centre {
            let (rank, other_rank) = (self.rank(), other.rank());
            let line = format!("{other_rank} x {} cannot be blended with {rank} x {}", other.n_embd, self.n_embd);
            return Err(invalid(line));
        }
        let ratio = other.scale / self.scale;
        Arc::make_mut(&mut self.state).blend(&other.state, ratio, share);
        if let (Some(inside), Some(other)) = (&mut self.inside, &other.inside) {
            Arc::make_mut(inside).blend(other, ratio, share);
        }
        Ok(())
    }

    /// Makes what this one can be merged into ([`MicroLora::absorb`]), of another rank; it changes nothing yet and does not learn.
    ///
    /// # Errors
    /// The rank is not 1 to [`BASE_RANK_MAX`].
    pub fn empty_base(&self, rank: usize) -> Result<MicroLora, LoraError> {
        check(self.n_embd, rank, BASE_RANK_MAX, self.scale)?;
        let zeros = |factors: &Factors| Factors::zeros(rank, factors.n_in, factors.n_out);
        Ok(self.of_factors(zeros(&self.state), self.inside.as_deref().map(zeros), 0))
    }

    /// Merges another one into this: the change it makes becomes `keep` of its own and `share` of the other's, the best of this rank
    /// (by singular values) where the sum has more.
    ///
    /// # Errors
    /// The other one is of another width or centre.
    pub fn absorb(&mut self, keep: f32, other: &MicroLora, share: f32) -> Result<(), LoraError> {
        self.check_beside(other)?;
        let share = share * other.scale / self.scale;
        Arc::make_mut(&mut self.state).absorb(keep, &other.state, share);
        if let Some(theirs) = &other.inside {
            let rank = self.rank();
            let none = || Arc::new(Factors::zeros(rank, theirs.n_in, theirs.n_out));
            Arc::make_mut(self.inside.get_or_insert_with(none)).absorb(keep, theirs, share);
        }
        Ok(())
    }

    /// Makes what it changes smaller.
    pub fn fade(&mut self, factor: f32) {
        let all = [&mut self.state].into_iter().chain(&mut self.inside).map(Arc::make_mut);
        all.for_each(|factors| factors.b.iter_mut().for_each(|x| *x *= factor));
    }

    /// Returns one that changes what both change; it does not learn.
    ///
    /// # Errors
    /// The other one is of another width or centre, or both have more than 12 ranks.
    pub fn beside(&self, other: &MicroLora) -> Result<MicroLora, LoraError> {
        self.check_beside(other)?;
        check(self.n_embd, self.rank() + other.rank(), ALL_RANK_MAX, self.scale)?;
        let ratio = other.scale / self.scale;
        let inside = match (&self.inside, &other.inside) {
            (Some(own), Some(theirs)) => Some(own.beside(theirs, ratio)),
            (own, _) => own.as_deref().map(Factors::frozen),
        };
        Ok(self.of_factors(self.state.beside(&other.state, ratio), inside, self.n_updates))
    }

    fn check_beside(&self, other: &MicroLora) -> Result<(), LoraError> {
        let inner = |micro: &MicroLora| micro.inside.as_ref().map(|inside| inside.n_out);
        let fits = inner(self).is_none_or(|n| inner(other).is_none_or(|other| other == n));
        match (other.n_embd, &other.centre) == (self.n_embd, &self.centre) && fits {
            true => Ok(()),
            false => Err(invalid(format!(
                "one of {} values beside one of {}, or of other centres",
                other.n_embd, self.n_embd
            ))),
        }
    }

    /// Returns one of the same states with other factors; it does not learn.
    fn of_factors(&self, state: Factors, inside: Option<Factors>, n_updates: u64) -> MicroLora {
        let (state, inside) = (Arc::new(state), inside.map(Arc::new));
        MicroLora { strength: 1.0, state, inside, n_updates, basis: None, ..self.clone() }
    }
}
