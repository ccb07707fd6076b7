//! Draft tokens from the text so far: what followed the last tokens when they stood there before (prompt look-up, Saxena 2023).

use std::collections::HashMap;

/// Tokens that must be the same, the longer tried first: the longer, the surer.
const LENGTHS: [usize; 2] = [6, 3];

/// Where each run of tokens was last followed by another token.
#[derive(Default)]
pub(super) struct Index {
    /// By hash of the run; what stands there is compared.
    places: [HashMap<u64, u32, foldhash::fast::FixedState>; LENGTHS.len()],
    /// Tokens that are looked at.
    n_seen: usize,
}

/// Hashes a run of tokens.
pub(super) fn hash(run: &[u32]) -> u64 {
    run.iter()
        .fold(run.len() as u64, |hash, &id| (hash ^ u64::from(id)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29))
}

impl Index {
    /// Looks at the tokens that are new.
    pub(super) fn extend(&mut self, context: &[u32]) {
        for end in self.n_seen..context.len() {
            for (places, n) in self.places.iter_mut().zip(LENGTHS).filter(|(_, n)| *n <= end) {
                places.insert(hash(&context[end - n..end]), end as u32);
            }
        }
        self.n_seen = context.len();
    }

    /// Returns where the context goes on from tokens that are its last ones.
    pub(super) fn find(&self, context: &[u32]) -> Option<usize> {
        self.places.iter().zip(LENGTHS).filter(|(_, n)| *n <= context.len()).find_map(|(places, n)| {
            let run = &context[context.len() - n..];
            let &place = places.get(&hash(run))?;
            let place = place as usize;
            (context[place - n..place] == *run).then_some(place)
        })
    }
}

/// Appends `n` draft tokens, from `place` on.
pub(super) fn continue_with(context: &mut Vec<u32>, place: usize, n: usize) {
    // What stands there may lead up to the draft tokens themselves: then it is a loop, which goes on.
    (place..place + n).for_each(|at| context.push(context[at]));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(context: &[u32], n: usize, expected: &[u32]) {
        let (mut index, mut all) = (Index::default(), Vec::new());
        // In pieces, as it grows.
        for piece in context.chunks(4) {
            all.extend_from_slice(piece);
            index.extend(&all);
        }
        if let Some(place) = index.find(&all) {
            continue_with(&mut all, place, n);
        }
        assert_eq!(&all[context.len()..], expected, "after {context:?}");
    }

    #[test]
    fn what_followed_before_is_guessed() {
        check(&[1, 2, 3, 4, 5, 6, 1, 2, 3], 3, &[4, 5, 6]);
        // The last time counts, and a loop goes on.
        check(&[1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 2, &[5, 1]);
        check(&[7, 7, 7, 7], 3, &[7, 7, 7]);
        check(&[1, 2, 3, 1, 2, 3], 8, &[1, 2, 3, 1, 2, 3, 1, 2]);
        // A longer run is surer than a later one.
        check(&[1, 2, 3, 4, 5, 6, 8, 4, 5, 6, 9, 1, 2, 3, 4, 5, 6], 1, &[8]);
        for unknown in [&[][..], &[1], &[1, 2, 3], &[1, 2, 3, 4, 2, 3, 1]] {
            check(unknown, 4, &[]);
        }
    }
}
