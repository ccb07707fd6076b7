//! The architectures as data: names of tensors and settings in a checkpoint, and what they are in a GGUF file. One short file a family,
//! over shared rows.

mod bert;
mod cohere;
mod deepseek;
mod gemma;
mod gpt;
mod gpt_oss;
mod keys;
mod lfm2;
mod llama;
mod mamba;
mod olmo;
mod phi;
mod qwen;
mod shared;

use super::config::{Assumed, Config};
use super::view::Floats;
use crate::error::{ConvertError, shown};

pub(super) use bert::n_padding;
pub(super) use keys::{KeyRule, Keys};
pub(super) use mamba::{n_groups, n_inner};

/// An architecture.
pub(super) struct Architecture {
    /// Names of its classes in frameworks.
    pub(super) classes: &'static [&'static str],
    /// `general.architecture`.
    pub(super) name: &'static str,
    /// Parts that names of tensors may begin with, and which say nothing.
    pub(super) prefixes: &'static [&'static str],
    /// Names may lack the `model.` that they begin with in the rules, as they do in models that were saved without a head.
    pub(super) may_be_bare: bool,
    /// Rules for tensors; of several for a name the first holds.
    pub(super) tensors: &'static [&'static [TensorRule]],
    /// Settings that are keys.
    pub(super) keys: &'static [&'static [KeyRule]],
    /// Keys that are computed.
    pub(super) computed: fn(&Config, &mut Keys<'_>) -> Result<(), ConvertError>,
    /// Tensors that no checkpoint has.
    pub(super) made: fn(&Config, &mut Keys<'_>) -> Result<Vec<MadeTensor>, ConvertError>,
    /// Values that frameworks assume of settings that are absent.
    pub(super) assumed: &'static [(&'static str, Assumed)],
    /// Kind of the tokenizer.
    pub(super) vocab: VocabKind,
}

/// A tensor of computed values.
pub(super) struct MadeTensor {
    pub(super) name: &'static str,
    pub(super) values: Vec<f32>,
}

/// Kind of a tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VocabKind {
    /// Byte-pair encoding.
    Bpe,
    /// SentencePiece where there is a `tokenizer.model`, else as `tokenizer.json` says; the space before texts as the tokenizer's
    /// settings say.
    Llama,
    /// SentencePiece where there is a `tokenizer.model`, else as `tokenizer.json` says.
    SpmOrBpe,
    /// Gemma's: no space before texts.
    Gemma,
    /// Gemma's first, which also names tokens for gaps.
    Gemma1,
    /// Phi 3's: also tokens of `tokenizer.json`.
    Phi3,
    /// GLM 4's, whose end of a turn is a name.
    Glm4,
    /// Byte-pair encoding, padded to a multiple.
    Padded(usize),
    /// WordPiece.
    WordPiece,
    /// RoBERTa's: byte-pair encoding, with types of sentences.
    Roberta,
}

/// Rule for tensors of a name. In names, `{}` stands for a number: the first is the layer, the second counts what is stacked. A
/// name matches with its ending (`.weight`, `.bias`), which is kept, or in full.
pub(super) struct TensorRule {
    pub(super) from: &'static str,
    /// The name in the file; two for what becomes two, with `|` between them.
    pub(super) to: &'static str,
    pub(super) how: How,
}

/// Treatment of a tensor's values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum How {
    /// As they are.
    Same,
    /// Left out.
    Skip,
    /// Left out, and all must be 0.
    Zeros,
    /// Rows of queries in the order of rotation by neighbours.
    PermuteQ,
    /// And of keys.
    PermuteK,
    /// Plus 1: norms whose weights count from there.
    PlusOne,
    /// Columns become rows.
    Transposed,
    /// The negative exponential.
    NegExp,
    /// The negative exponential, as a column.
    NegExpColumn,
    /// As a column.
    Column,
    /// Without dimensions of one.
    Squeezed,
    /// A row a group of a state space.
    Groups,
    /// One of those that are stacked.
    Stack,
    /// Queries, keys and values of each head behind each other, which become all queries, all keys, all values.
    QkvByHead,
    /// Keys and values that one matrix expands: two tensors, the first with columns and rows exchanged.
    LatentKv,
    /// Two halves of the rows of each expert: two tensors.
    Halves,
    /// Every other row of each expert, in transposed matrices: two tensors.
    InterleavedTransposed,
    /// Every other value of each expert's bias: two tensors.
    Interleaved,
    /// Columns become rows, in each expert.
    TransposedExperts,
    /// MXFP4 codes, with scales beside them.
    Mxfp4,
    /// MXFP4 codes of every other row: two tensors.
    Mxfp4Interleaved,
    /// Rows of positions behind those of padding.
    Positions,
    /// Rows of tokens that the tokenizer has.
    Tokens,
    /// A row a class, and not one row, which would rank: behind a layer with ReLU, where loaders have tanh.
    Classes,
    /// Multiplied with settings, in order; a number behind a colon is a place in a list.
    Scaled(&'static [&'static str]),
    /// Multiplied with settings, and its parts with those of a list (Falcon-H1).
    ScaledParts,
}

/// Makes rules of rows `"from" => "to", How;`.
macro_rules! tensors {
    ($($from:literal => $to:literal $(, $how:expr)?;)*) => {
        &[$($crate::hf::arch::TensorRule {
            from: $from,
            to: $to,
            how: { #[allow(unused_imports)] use $crate::hf::arch::How::*; tensors!(@ $($how)?) },
        },)*]
    };
    (@) => { $crate::hf::arch::How::Same };
    (@ $how:expr) => { $how };
}
pub(super) use tensors;

/// The architectures.
const ALL: &[&[Architecture]] = &[
    llama::ALL,
    qwen::ALL,
    gemma::ALL,
    phi::ALL,
    gpt::ALL,
    olmo::ALL,
    cohere::ALL,
    gpt_oss::ALL,
    lfm2::ALL,
    deepseek::ALL,
    mamba::ALL,
    bert::ALL,
];

/// Iterates over the architectures.
pub(super) fn all() -> impl Iterator<Item = &'static Architecture> {
    ALL.iter().flat_map(|family| family.iter())
}

/// Finds the architecture of a class.
///
/// # Errors
/// It is not converted.
pub(super) fn find(class: &str) -> Result<&'static Architecture, ConvertError> {
    all().find(|architecture| architecture.classes.contains(&class)).ok_or_else(|| {
        let mut names: Vec<&str> = all().map(|architecture| architecture.name).collect();
        names.sort_unstable();
        names.dedup();
        let line = format!("models of class '{}' are not converted; those of {} are", shown(class), names.join(", "));
        ConvertError::unsupported(line)
    })
}

/// A rule with what it was found by.
#[derive(Debug)]
pub(super) struct Match {
    /// Names in the file.
    pub(super) to: Vec<String>,
    pub(super) how: How,
    /// The number of what is stacked.
    pub(super) index: Option<usize>,
}

impl Architecture {
    /// Finds the rule for a tensor.
    pub(super) fn rule(&self, name: &str) -> Option<Match> {
        let name = name.replace("language_model.", "");
        let plain = self.prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(&name);
        let (pattern, numbers) = pattern(plain);
        let is_of = |rule: &TensorRule, pattern: &str| {
            rule.from == pattern || self.may_be_bare && rule.from.strip_prefix("model.") == Some(pattern)
        };
        let find = |pattern: &str| self.tensors.iter().flat_map(|rows| rows.iter()).find(|rule| is_of(rule, pattern));
        let endings = [".weight", ".bias"].into_iter();
        let whole = find(&pattern).map(|rule| (rule, ""));
        let (rule, ending) = whole
            .or_else(|| endings.filter_map(|end| find(pattern.strip_suffix(end)?).map(|rule| (rule, end))).next())?;
        let layer = numbers.first().map_or_else(String::new, ToString::to_string);
        let to = rule.to.split('|').map(|to| to.replace("{}", &layer) + ending).collect();
        Some(Match { to, how: rule.how, index: numbers.get(1).copied() })
    }

    /// Returns whether a tensor is of the parts of a model that are no text, or is computed anew.
    pub(super) fn is_left_out(&self, name: &str) -> bool {
        const ENDS: [&str; 4] =
            [".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq", "embeddings.position_ids"];
        const PARTS: [&str; 7] = ["visual.", "vision.", "audio.", "vision_", "audio_", "projector.", "image_newline"];
        ENDS.iter().any(|end| name.ends_with(end)) || PARTS.iter().any(|part| name.contains(part))
    }
}

/// Puts `{}` in the place of numbers between dots.
fn pattern(name: &str) -> (String, Vec<usize>) {
    let mut numbers = Vec::new();
    let parts: Vec<&str> = name
        .split('.')
        .map(|part| match part.parse::<usize>() {
            Ok(n) if part.bytes().all(|byte| byte.is_ascii_digit()) => {
                numbers.push(n);
                "{}"
            }
            _ => part,
        })
        .collect();
    (parts.join("."), numbers)
}

/// Nothing more to compute.
fn nothing(_: &Config, _: &mut Keys<'_>) -> Result<(), ConvertError> {
    Ok(())
}

/// No tensor to make.
fn no_tensors(_: &Config, _: &mut Keys<'_>) -> Result<Vec<MadeTensor>, ConvertError> {
    Ok(Vec::new())
}

/// An architecture with nothing of its own.
const PLAIN: Architecture = Architecture {
    classes: &[],
    name: "",
    prefixes: &[],
    may_be_bare: false,
    tensors: &[],
    keys: &[],
    computed: nothing,
    made: no_tensors,
    assumed: &[],
    vocab: VocabKind::Bpe,
};

impl MadeTensor {
    /// Returns its shape.
    pub(super) fn shape(&self) -> Vec<usize> {
        vec![self.values.len()]
    }
}

/// Multiplies floats with settings in order.
///
/// # Errors
/// A setting is absent.
pub(super) fn scaled(mut floats: Floats, config: &Config, settings: &[&str]) -> Result<Floats, ConvertError> {
    for setting in settings {
        let factor = match setting.split_once(':') {
            None => config.float(&[setting])?,
            Some((list, place)) => {
                let list_of = config.floats(list)?;
                let place: usize = place.parse().unwrap_or(usize::MAX);
                *list_of.get(place).ok_or_else(|| {
                    ConvertError::invalid(format!("config.json: '{list}' has {} numbers, too few", list_of.len()))
                })?
            }
        };
        floats = floats.with(super::view::Op::Scale(factor as f32));
    }
    Ok(floats)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_of_the_models_is_converted() {
        let names: Vec<&str> = all().map(|architecture| architecture.name).collect();
        let missing: Vec<&str> = ruvllm_model::architectures().filter(|name| !names.contains(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn names_find_their_rules() {
        let check = |class: &str, name: &str, to: &[&str], how: How, index: Option<usize>| {
            let found = find(class).expect("a class").rule(name).expect(name);
            assert_eq!(
                (found.to.iter().map(String::as_str).collect::<Vec<_>>(), found.how, found.index),
                (to.to_vec(), how, index)
            );
        };
        let llama = "LlamaForCausalLM";
        check(llama, "model.layers.12.self_attn.q_proj.weight", &["blk.12.attn_q.weight"], How::PermuteQ, None);
        check(llama, "language_model.model.embed_tokens.weight", &["token_embd.weight"], How::Same, None);
        let experts = "model.layers.1.mlp.experts.7.down_proj.weight";
        check("Qwen3MoeForCausalLM", experts, &["blk.1.ffn_down_exps.weight"], How::Stack, Some(7));
        check("Qwen2Model", "layers.0.mlp.up_proj.weight", &["blk.0.ffn_up.weight"], How::Same, None);
        check("Qwen3ForCausalLM", "norm.weight", &["output_norm.weight"], How::Same, None);
        check("LlamaModel", "layers.3.self_attn.k_proj.bias", &["blk.3.attn_k.bias"], How::PermuteK, None);
        check("Mamba2ForCausalLM", "backbone.layers.0.mixer.dt_bias", &["blk.0.ssm_dt.bias"], How::Same, None);
        assert!(find(llama).expect("a class").rule("model.layers.1.self_attn.x_proj.weight").is_none());
        assert!(find("MistralForCausalLM").expect("a class").rule("layers.0.mlp.up_proj.weight").is_none());
        assert!(find("T5Model").is_err());
    }
}
