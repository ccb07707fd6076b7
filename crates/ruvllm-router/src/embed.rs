//! Texts to vectors: what this crate asks of somebody who has a model, and a way without one.

use xxhash_rust::xxh3::xxh3_64;

use crate::RouterError;
use crate::math::normalise;

/// Makes unit vectors of texts. Implemented above this crate, where models run.
pub trait Embedder {
    /// Returns the length of the vectors.
    fn dim(&self) -> usize;

    /// Returns the vector of a text: `[dim]`, of length 1.
    ///
    /// # Errors
    /// The text cannot be embedded; kind `Embed`.
    fn embed(&mut self, text: &str) -> Result<Vec<f32>, RouterError>;
}

/// Words and pairs of words, hashed into signed counts (Weinberger et al. 2009, arXiv:0902.2206): vectors without any
/// model. Two texts are near each other if they share words; nothing is known of meaning.
///
/// ```
/// use ruvllm_router::{Embedder, HashedWords};
///
/// let mut words = HashedWords::new(256);
/// let (a, b) = (words.embed("fix the parser")?, words.embed("Fix the lexer!")?);
/// let cosine: f32 = a.iter().zip(&b).map(|(x, y)| x * y).sum();
/// assert!(cosine > 0.4 && cosine < 0.9);
/// # Ok::<(), ruvllm_router::RouterError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashedWords {
    dim: usize,
}

impl HashedWords {
    /// Makes an embedder of `dim` values.
    ///
    /// # Panics
    /// `dim` is 0.
    pub fn new(dim: usize) -> HashedWords {
        assert!(dim > 0, "a vector has at least one value");
        HashedWords { dim }
    }

    /// Returns the vector of a text; that of a text without words is all zeros.
    pub fn vector(&self, text: &str) -> Vec<f32> {
        let mut vector = vec![0.0; self.dim];
        let (mut word, mut pair) = (String::new(), String::new());
        for part in text.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty()) {
            word.clear();
            word.extend(part.chars().flat_map(char::to_lowercase));
            add_hashed(&mut vector, &word, 1.0);
            if !pair.is_empty() {
                pair.push(' ');
                pair.push_str(&word);
                add_hashed(&mut vector, &pair, 0.7);
            }
            pair.clone_from(&word);
        }
        normalise(&mut vector);
        vector
    }
}

/// Adds `±weight` at the place that the key's hash names.
pub(crate) fn add_hashed(vector: &mut [f32], key: &str, weight: f32) {
    let hash = xxh3_64(key.as_bytes());
    let place = (hash % vector.len() as u64) as usize;
    vector[place] += if hash >> 63 == 0 { weight } else { -weight };
}

impl Embedder for HashedWords {
    fn dim(&self) -> usize {
        self.dim
    }

    fn embed(&mut self, text: &str) -> Result<Vec<f32>, RouterError> {
        Ok(self.vector(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::dot;

    #[test]
    fn vectors_have_unit_length_and_ignore_case() {
        let words = HashedWords::new(300);
        let vector = words.vector("Straße, naïve and 日本");
        assert!((dot(&vector, &vector) - 1.0).abs() < 1e-5);
        assert_eq!(vector, words.vector("straße; NAÏVE and 日本!"));
        assert!(words.vector(" … ").iter().all(|&x| x == 0.0));
    }
}
