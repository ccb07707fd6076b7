//! `tokenizer.model`: a message of protocol buffers with the pieces of a SentencePiece model. Only they are read.

use std::str;

use super::tokenizer_json::N_TOKENS_MAX;
use crate::error::ConvertError;

/// Types of pieces, as both formats number them.
pub(super) const NORMAL: i32 = 1;
pub(super) const CONTROL: i32 = 3;
pub(super) const USER_DEFINED: i32 = 4;
pub(super) const UNUSED: i32 = 5;
pub(super) const BYTE: i32 = 6;

/// A piece.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) score: f32,
    pub(super) kind: i32,
}

/// Model kinds in the settings of the training.
const UNIGRAM: u64 = 1;
const BPE: u64 = 2;

/// Reads the pieces of a model, by id.
///
/// # Errors
/// It is damaged, or neither of byte pairs nor of a unigram model.
pub(super) fn pieces(bytes: &[u8]) -> Result<Vec<Piece>, ConvertError> {
    let mut pieces = Vec::new();
    let mut kind = UNIGRAM;
    let mut message = Message(bytes);
    while let Some((number, field)) = message.next()? {
        match (number, field) {
            (1, Field::Bytes(piece)) if pieces.len() < N_TOKENS_MAX => pieces.push(one(piece)?),
            (1, _) => return Err(damaged("it has too many pieces")),
            (2, Field::Bytes(training)) => {
                let mut message = Message(training);
                while let Some((number, field)) = message.next()? {
                    if let (3, Field::Number(n)) = (number, field) {
                        kind = n;
                    }
                }
            }
            _ => {}
        }
    }
    if !matches!(kind, UNIGRAM | BPE) {
        return Err(ConvertError::unsupported("a SentencePiece model of words or characters is not converted"));
    }
    match pieces.is_empty() {
        true => Err(damaged("it has no pieces")),
        false => Ok(pieces),
    }
}

fn one(bytes: &[u8]) -> Result<Piece, ConvertError> {
    let mut piece = Piece { text: String::new(), score: 0.0, kind: NORMAL };
    let mut message = Message(bytes);
    while let Some((number, field)) = message.next()? {
        match (number, field) {
            (1, Field::Bytes(text)) => {
                piece.text = str::from_utf8(text).map_err(|_| damaged("a piece is no UTF-8"))?.to_owned();
            }
            (2, Field::Four(bits)) => piece.score = f32::from_le_bytes(bits),
            (3, Field::Number(kind @ 1..=6)) => piece.kind = kind as i32,
            _ => {}
        }
    }
    Ok(piece)
}

fn damaged(what: &str) -> ConvertError {
    ConvertError::invalid(format!("damaged SentencePiece model: {what}; download it again"))
}

/// A message of protocol buffers, from its next field on.
struct Message<'a>(&'a [u8]);

/// The value of a field.
enum Field<'a> {
    Number(u64),
    Four([u8; 4]),
    Eight,
    Bytes(&'a [u8]),
}

impl<'a> Message<'a> {
    fn next(&mut self) -> Result<Option<(u64, Field<'a>)>, ConvertError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.number()?;
        let field = match key & 7 {
            0 => Field::Number(self.number()?),
            1 => {
                self.take(8)?;
                Field::Eight
            }
            2 => {
                let n = self.number()?;
                Field::Bytes(self.take(n)?)
            }
            5 => Field::Four(self.take(4)?.try_into().map_err(|_| damaged("it ends early"))?),
            _ => return Err(damaged("a field is of no known kind")),
        };
        Ok(Some((key >> 3, field)))
    }

    fn take(&mut self, n: u64) -> Result<&'a [u8], ConvertError> {
        let split = usize::try_from(n).ok().and_then(|n| self.0.split_at_checked(n));
        let (taken, rest) = split.ok_or_else(|| damaged("it ends early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, ConvertError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Ok(number);
            }
        }
        Err(damaged("a number is too long"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_read_and_damage_is_told() {
        // Two pieces: "a" of score -1, a control token; settings that say byte pairs.
        let model =
            [&[10, 8, 10, 1, b'a', 21, 0, 0, 128, 191][..], &[10, 7, 10, 3, b'<', b's', b'>', 24, 3], &[18, 2, 24, 2]]
                .concat();
        let pieces_of = pieces(&model).expect("a model");
        assert_eq!(pieces_of[0], Piece { text: "a".to_owned(), score: -1.0, kind: NORMAL });
        assert_eq!((pieces_of[1].text.as_str(), pieces_of[1].kind), ("<s>", CONTROL));
        for cut in 1..model.len() {
            let _ = pieces(&model[..cut]);
        }
        for bytes in [&[][..], &[10, 200][..], &[255; 12][..], &[10, 1, 7][..]] {
            let line = pieces(bytes).expect_err("damaged").to_string();
            assert!(line.starts_with("damaged SentencePiece model: "), "{line}");
        }
    }
}
