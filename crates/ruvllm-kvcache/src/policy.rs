//! Formats of the KV cache as it ages.

use crate::error::KvError;
use ruvllm_kernels::attention::{BLOCK_TOKENS, KvBlock, KvFormat, UNIT_BLOCKS};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// Blocks at the beginning of a sequence that stay exact: what all later tokens look at (attention sinks).
const SINK_BLOCKS: usize = 1;
/// Positions at the end of a sequence that stay exact, unless asked otherwise.
const HOT: usize = 256;
/// From this age on positions are in 4 bits under [`KvPolicy::Tiered`], unless asked otherwise.
const WARM: usize = 512;

/// Policy of a KV cache: everything exact, or older blocks in fewer bits.
///
/// The first 16 positions of a sequence and its last [`HOT`](KvPolicy::HOT) stay exact under every policy. A block's age
/// counts from the sequence's end to the block's last position.
///
/// ```
/// use ruvllm_kvcache::KvPolicy;
/// assert_eq!("tiered".parse(), Ok(KvPolicy::TIERED));
/// assert_eq!("tiered:128,1024".parse(), Ok(KvPolicy::Tiered { hot: 128, warm: 1024 }));
/// assert_eq!(KvPolicy::Tiered { hot: 128, warm: 1024 }.to_string(), "tiered:128,1024");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KvPolicy {
    /// Half precision.
    #[default]
    F16,
    /// Single precision: twice the memory, exact.
    F32,
    /// 8 bits.
    Q8,
    /// 8 bits from age `hot` on, 4 bits from age `warm` on.
    Tiered {
        /// Positions at the end that stay exact.
        hot: usize,
        /// Positions at the end that are not in 4 bits.
        warm: usize,
    },
    /// 4 bits.
    Q4,
    /// 2 bits: an archive, at a price.
    Q2,
    /// Half precision until memory runs short, then 8 bits, then 4 bits, the oldest first.
    Auto,
}

impl KvPolicy {
    /// Positions at the end of a sequence that stay exact, unless asked otherwise.
    pub const HOT: usize = HOT;
    /// [`KvPolicy::Tiered`] with the usual boundaries.
    pub const TIERED: KvPolicy = KvPolicy::Tiered { hot: HOT, warm: WARM };
    /// The names that are understood, for messages.
    pub const NAMES: &'static str = "f16, f32, q8, tiered, tiered:HOT,WARM, q4, q2, auto";

    /// Returns the formats that blocks may have, the one that rows are written in first.
    pub fn formats(self) -> &'static [KvFormat] {
        match self {
            KvPolicy::F16 => &[KvFormat::F16],
            KvPolicy::F32 => &[KvFormat::F32],
            KvPolicy::Q8 => &[KvFormat::F16, KvFormat::Q8],
            KvPolicy::Tiered { .. } | KvPolicy::Q4 | KvPolicy::Auto => &[KvFormat::F16, KvFormat::Q8, KvFormat::Q4],
            KvPolicy::Q2 => &[KvFormat::F16, KvFormat::Q8, KvFormat::Q2],
        }
    }

    /// Returns the formats of a sequence's blocks once all that is due of `len` positions has aged, memory not being short.
    ///
    /// ```
    /// use ruvllm_kernels::attention::KvFormat;
    /// let formats = ruvllm_kvcache::KvPolicy::TIERED.aged(4096);
    /// assert_eq!(formats.iter().filter(|&&format| format == KvFormat::Q4).count(), 220);
    /// ```
    pub fn aged(self, len: usize) -> Vec<KvFormat> {
        let mut blocks = vec![KvBlock::new(self.formats()[0], 0); len.div_ceil(BLOCK_TOKENS)];
        let mut ageing = Ageing::default();
        while let Some(Move { blocks: range, to }) = ageing.next(self, &blocks, len) {
            blocks[range].fill(KvBlock::new(to, 0));
        }
        blocks.into_iter().map(KvBlock::format).collect()
    }

    /// Returns whether blocks may be brought into fewer bits when memory runs short.
    pub fn shrinks_under_pressure(self) -> bool {
        matches!(self, KvPolicy::Tiered { .. } | KvPolicy::Auto)
    }

    /// Returns from which age on blocks are in 8 bits, and in which packed format from which age on.
    fn stages(self) -> (Option<usize>, Option<(KvFormat, usize)>) {
        match self {
            KvPolicy::F16 | KvPolicy::F32 | KvPolicy::Auto => (None, None),
            KvPolicy::Q8 => (Some(HOT), None),
            KvPolicy::Tiered { hot, warm } => (Some(hot), Some((KvFormat::Q4, warm.max(hot)))),
            KvPolicy::Q4 => (None, Some((KvFormat::Q4, HOT))),
            KvPolicy::Q2 => (None, Some((KvFormat::Q2, HOT))),
        }
    }
}

impl fmt::Display for KvPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KvPolicy::F16 => "f16",
            KvPolicy::F32 => "f32",
            KvPolicy::Q8 => "q8",
            &KvPolicy::TIERED => "tiered",
            KvPolicy::Tiered { hot, warm } => return write!(f, "tiered:{hot},{warm}"),
            KvPolicy::Q4 => "q4",
            KvPolicy::Q2 => "q2",
            KvPolicy::Auto => "auto",
        })
    }
}

impl FromStr for KvPolicy {
    type Err = KvError;

    fn from_str(name: &str) -> Result<KvPolicy, KvError> {
        let simple = match name {
            "f16" => KvPolicy::F16,
            "f32" => KvPolicy::F32,
            "q8" => KvPolicy::Q8,
            "tiered" => KvPolicy::TIERED,
            "q4" => KvPolicy::Q4,
            "q2" => KvPolicy::Q2,
            "auto" => KvPolicy::Auto,
            _ => {
                let ages = name.strip_prefix("tiered:").and_then(|ages| ages.split_once(','));
                let ages = ages.and_then(|(hot, warm)| Some((hot.parse().ok()?, warm.parse().ok()?)));
                let Some((hot, warm)) = ages.filter(|(hot, warm)| hot <= warm) else {
                    return Err(KvError::unknown_policy(name));
                };
                KvPolicy::Tiered { hot, warm }
            }
        };
        Ok(simple)
    }
}

/// Blocks of a sequence that are to be brought into fewer bits, by their places in its table: one, or a whole unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// Range of the blocks.
    pub blocks: Range<usize>,
    /// To what.
    pub to: KvFormat,
}

/// Age of a sequence's blocks. Units of four blocks begin at every fourth block, the first of them aside,
/// which holds the sinks: what cannot be part of a unit stays in 8 bits.
#[derive(Clone, Copy, Debug)]
pub struct Ageing {
    /// No block before it is to become 8 bits.
    eights_from: usize,
    /// No unit before it is to be packed.
    units_from: usize,
}

impl Default for Ageing {
    fn default() -> Ageing {
        Ageing { eights_from: SINK_BLOCKS, units_from: SINK_BLOCKS.next_multiple_of(UNIT_BLOCKS) }
    }
}

impl Ageing {
    /// Returns what is due next in a sequence of `len` positions in `blocks`, the oldest first, and counts it as done.
    pub fn next(&mut self, policy: KvPolicy, blocks: &[KvBlock], len: usize) -> Option<Move> {
        let (eights, packed) = policy.stages();
        let n_older = |age: usize| len.saturating_sub(age) / BLOCK_TOKENS;
        let mut n_eights = eights.map_or(0, n_older);
        if let Some((to, age)) = packed {
            while self.units_from + UNIT_BLOCKS <= n_older(age) {
                let unit = self.units_from..self.units_from + UNIT_BLOCKS;
                self.units_from = unit.end;
                // A shared prefix may bring some of the unit's blocks in fewer bits: then the others are 8 bits.
                if blocks[unit.clone()].iter().all(|block| block.format() < to) {
                    return Some(Move { blocks: unit, to });
                }
            }
            n_eights = n_eights.max(n_older(age).min(self.units_from));
        }
        while self.eights_from < n_eights {
            let index = self.eights_from;
            self.eights_from += 1;
            if blocks[index].format().is_exact() {
                return Some(Move { blocks: index..index + 1, to: KvFormat::Q8 });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use KvFormat::{F16, Q2, Q4, Q8};

    /// Lets a sequence grow to `len` and returns the formats of its blocks.
    fn formats(policy: KvPolicy, len: usize, step: usize, known: &[KvFormat]) -> Vec<KvFormat> {
        let mut blocks: Vec<KvBlock> = known.iter().map(|&format| KvBlock::new(format, 0)).collect();
        let mut ageing = Ageing::default();
        let mut n = blocks.len() * 16;
        loop {
            blocks.resize(n.div_ceil(16), KvBlock::new(policy.formats()[0], 0));
            while let Some(Move { blocks: range, to }) = ageing.next(policy, &blocks, n) {
                assert!(policy.formats().contains(&to) && range.len() == to.blocks_per_unit());
                assert!(blocks[range.clone()].iter().all(|block| block.format() < to));
                blocks[range].fill(KvBlock::new(to, 0));
            }
            if n == len {
                return blocks.iter().map(|block| block.format()).collect();
            }
            n = len.min(n + step);
        }
    }

    fn runs(formats: &[KvFormat]) -> Vec<(KvFormat, usize)> {
        formats.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
    }

    #[test]
    fn blocks_age_as_the_policy_says_however_the_sequence_grows() {
        for step in [1, 16, 50, 5000] {
            let of = |policy, len| runs(&formats(policy, len, step, &[]));
            assert_eq!(of(KvPolicy::TIERED, 4096), [(F16, 1), (Q8, 3), (Q4, 220), (Q8, 16), (F16, 16)]);
            assert_eq!(of(KvPolicy::TIERED, 4100), [(F16, 1), (Q8, 3), (Q4, 220), (Q8, 16), (F16, 17)]);
            assert_eq!(of(KvPolicy::Q4, 4096), [(F16, 1), (Q8, 3), (Q4, 236), (F16, 16)]);
            assert_eq!(of(KvPolicy::Q2, 650), [(F16, 1), (Q8, 3), (Q2, 20), (F16, 17)]);
            assert_eq!(of(KvPolicy::Q8, 300), [(F16, 1), (Q8, 1), (F16, 17)]);
            assert_eq!(of(KvPolicy::Q8, 200), [(F16, 13)]);
            let custom = KvPolicy::Tiered { hot: 0, warm: 64 };
            assert_eq!(of(custom, 320), [(F16, 1), (Q8, 3), (Q4, 12), (Q8, 4)]);
            assert_eq!(of(KvPolicy::Auto, 4096), [(F16, 256)]);
            assert_eq!(of(KvPolicy::F32, 4096), [(KvFormat::F32, 256)]);
        }
    }

    #[test]
    fn a_unit_that_a_shared_prefix_began_stays_in_8_bits() {
        let known = [[F16].as_slice(), &[Q8; 3], &[Q4; 6]].concat();
        let grown = formats(KvPolicy::TIERED, 1024, 1, &known);
        assert_eq!(runs(&grown), [(F16, 1), (Q8, 3), (Q4, 6), (Q8, 2), (Q4, 20), (Q8, 16), (F16, 16)]);
    }

    #[test]
    fn names_come_back_and_wrong_ones_list_the_choices() {
        for name in ["f16", "f32", "q8", "tiered", "tiered:64,4096", "q4", "q2", "auto"] {
            assert_eq!(name.parse::<KvPolicy>().expect(name).to_string(), name);
        }
        for wrong in ["", "q3", "tiered:", "tiered:5", "tiered:9,5", "tiered:a,b", "F16"] {
            let line = wrong.parse::<KvPolicy>().expect_err(wrong).to_string();
            assert_eq!(line, format!("unknown kv policy '{wrong}'; choose one of {}", KvPolicy::NAMES));
        }
    }
}
