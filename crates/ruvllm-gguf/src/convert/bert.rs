//! BERT: sentence embeddings, and cross-encoders that score a pair of texts.

use std::path::Path;

use serde_json::Value as Json;

use super::weights::Weights;
use super::{json, missing, text};
use crate::error::{GgufError, GgufErrorKind};
use crate::write::GgufWriter;

/// The most of anything that a configuration counts.
const COUNT_MAX: u64 = 1 << 24;
/// How the special tokens are called if the folder does not say.
const SPECIALS: [(&str, &str); 5] =
    [("unk", "[UNK]"), ("sep", "[SEP]"), ("pad", "[PAD]"), ("cls", "[CLS]"), ("mask", "[MASK]")];
/// llama.cpp's numbers of token types.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
/// And of ways to make one vector.
const MEAN: u32 = 1;
const CLS: u32 = 2;
const LAST: u32 = 3;
const RANK: u32 = 4;

/// What the configuration counts.
struct Sizes {
    n_layers: usize,
    n_embd: usize,
    n_ff: usize,
    n_heads: usize,
    n_ctx: usize,
    n_vocab: usize,
    n_types: usize,
}

pub(super) fn convert(folder: &Path, name: &str, config: &Json) -> Result<GgufWriter<'static>, GgufError> {
    let sizes = Sizes::read(config).map_err(|error| error.at(&folder.join("config.json")))?;
    let mut weights = Weights::open(&folder.join("model.safetensors"))?;
    let is_ranker = weights.has("classifier.weight");
    let mut writer = GgufWriter::new();
    let metadata = writer.metadata_mut();
    metadata.set("general.architecture", "bert");
    metadata.set("general.name", name);
    for (key, n) in [
        ("block_count", sizes.n_layers),
        ("context_length", sizes.n_ctx),
        ("embedding_length", sizes.n_embd),
        ("feed_forward_length", sizes.n_ff),
        ("attention.head_count", sizes.n_heads),
        ("vocab_size", sizes.n_vocab),
    ] {
        metadata.set(format!("bert.{key}"), n as u32);
    }
    metadata.set("bert.attention.layer_norm_epsilon", config["layer_norm_eps"].as_f64().unwrap_or(1e-12) as f32);
    metadata.set("bert.attention.causal", false);
    metadata.set("bert.pooling_type", if is_ranker { RANK } else { pooling(folder)? });
    vocabulary(folder, &mut writer, &sizes)?;
    tensors(&mut writer, &mut weights, &sizes, is_ranker)?;
    Ok(writer)
}

impl Sizes {
    fn read(config: &Json) -> Result<Sizes, GgufError> {
        let count = |key: &str| match config[key].as_u64() {
            Some(n @ 1..=COUNT_MAX) => Ok(n as usize),
            _ => Err(GgufError::invalid(format!("'{key}' is {}, no usable count", config[key]))),
        };
        for (key, known) in [("hidden_act", "gelu"), ("position_embedding_type", "absolute")] {
            if let Some(other) = config[key].as_str().filter(|&value| value != known) {
                let line = format!("'{key}' is '{other}', and only '{known}' is converted");
                return Err(GgufError::new(GgufErrorKind::Unsupported, line));
            }
        }
        Ok(Sizes {
            n_layers: count("num_hidden_layers")?,
            n_embd: count("hidden_size")?,
            n_ff: count("intermediate_size")?,
            n_heads: count("num_attention_heads")?,
            n_ctx: count("max_position_embeddings")?,
            n_vocab: count("vocab_size")?,
            n_types: count("type_vocab_size")?,
        })
    }
}

/// Returns how token vectors become one: as the folder's pooling module says, else the mean.
fn pooling(folder: &Path) -> Result<u32, GgufError> {
    let Some(config) = json(folder, "1_Pooling/config.json")? else { return Ok(MEAN) };
    let known = [("pooling_mode_mean_tokens", MEAN), ("pooling_mode_cls_token", CLS), ("pooling_mode_lasttoken", LAST)];
    let modes =
        config.as_object().into_iter().flatten().filter(|(key, on)| key.starts_with("pooling_mode_") && **on == true);
    let modes: Vec<&String> = modes.map(|(key, _)| key).collect();
    let found = known.iter().find(|(key, _)| modes.len() == 1 && modes[0] == key);
    found.map(|(_, number)| *number).ok_or_else(|| {
        let line = format!("pooling by {modes:?} is not converted; mean, cls and last are, one of them");
        GgufError::new(GgufErrorKind::Unsupported, line).at(&folder.join("1_Pooling/config.json"))
    })
}

/// Writes the WordPiece vocabulary: in front of what begins a word stands `▁`, and the `##` of what goes on with one is left
/// out.
fn vocabulary(folder: &Path, writer: &mut GgufWriter<'_>, sizes: &Sizes) -> Result<(), GgufError> {
    let mut words = match text(folder, "vocab.txt")? {
        Some(text) => text.lines().map(str::to_owned).collect(),
        None => words_of_json(folder)?,
    };
    if words.len() > sizes.n_vocab {
        let line = format!("{} tokens, the configuration says {}", words.len(), sizes.n_vocab);
        return Err(GgufError::invalid(line).at(folder));
    }
    (words.len()..sizes.n_vocab).for_each(|id| words.push(format!("[PAD{id}]")));
    let settings = json(folder, "tokenizer_config.json")?.unwrap_or_default();
    let mut special_ids = Vec::new();
    for (kind, default) in SPECIALS {
        let token = &settings[format!("{kind}_token")];
        let token = token.as_str().or_else(|| token["content"].as_str()).unwrap_or(default);
        if let Some(id) = words.iter().position(|word| word == token) {
            special_ids.push((kind, id));
        }
    }
    let is_special = |id: usize| special_ids.iter().any(|&(_, special)| special == id);
    let types: Vec<i32> = (0..words.len()).map(|id| if is_special(id) { CONTROL } else { NORMAL }).collect();
    let phantom = |word: &String| match word.strip_prefix("##") {
        _ if word.starts_with('[') && word.ends_with(']') => word.clone(),
        Some(rest) => rest.to_owned(),
        None => format!("▁{word}"),
    };
    let tokens: Vec<String> = words.iter().map(phantom).collect();
    let metadata = writer.metadata_mut();
    metadata.set("tokenizer.ggml.model", "bert");
    metadata.set("tokenizer.ggml.pre", "default");
    metadata.set("tokenizer.ggml.tokens", tokens);
    metadata.set("tokenizer.ggml.token_type", types);
    metadata.set("tokenizer.ggml.token_type_count", sizes.n_types as u32);
    for (kind, id) in &special_ids {
        // `seperator` is how the format spells it.
        let names: &[&str] = match *kind {
            "unk" => &["unknown"],
            "sep" => &["eos", "seperator"],
            "pad" => &["padding"],
            "cls" => &["bos", "cls"],
            _ => &["mask"],
        };
        names.iter().for_each(|name| metadata.set(format!("tokenizer.ggml.{name}_token_id"), *id as u32));
    }
    metadata.set("tokenizer.ggml.add_bos_token", true);
    metadata.set("tokenizer.ggml.add_eos_token", true);
    let lowercase = settings["do_lower_case"].as_bool().unwrap_or(true);
    metadata.set("tokenizer.ggml.normalizer.lowercase", lowercase);
    if let Some(strip) = settings["strip_accents"].as_bool() {
        metadata.set("tokenizer.ggml.normalizer.strip_accents", strip);
    }
    Ok(())
}

/// Returns the words of `tokenizer.json` by id.
fn words_of_json(folder: &Path) -> Result<Vec<String>, GgufError> {
    let path = folder.join("tokenizer.json");
    let tokenizer = json(folder, "tokenizer.json")?.ok_or_else(|| missing(folder, "vocab.txt or tokenizer.json"))?;
    let model = &tokenizer["model"];
    if model["type"].as_str().is_some_and(|kind| kind != "WordPiece") {
        let line = format!("a tokenizer of type {} is not converted, WordPiece is", model["type"]);
        return Err(GgufError::new(GgufErrorKind::Unsupported, line).at(&path));
    }
    let vocab = model["vocab"].as_object().ok_or_else(|| GgufError::invalid("it has no vocabulary").at(&path))?;
    let mut words = vec![None; vocab.len()];
    for (word, id) in vocab {
        let place = id.as_u64().and_then(|id| words.get_mut(id as usize));
        let place = place.ok_or_else(|| GgufError::invalid(format!("token {word:?} has the id {id}")).at(&path))?;
        *place = Some(word.clone());
    }
    let words: Option<Vec<String>> = words.into_iter().collect();
    words.ok_or_else(|| GgufError::invalid("two tokens have the same id").at(&path))
}

/// Writes the tensors in the order of a forward pass.
fn tensors(
    writer: &mut GgufWriter<'static>,
    weights: &mut Weights,
    sizes: &Sizes,
    is_ranker: bool,
) -> Result<(), GgufError> {
    let &Sizes { n_embd, n_ff, .. } = sizes;
    // A model with a head has the encoder under a name of its own.
    let root = if weights.has("bert.embeddings.word_embeddings.weight") { "bert." } else { "" };
    let mut add = |to: String, from: String, shape: &[usize]| -> Result<(), GgufError> {
        let (ty, shape, data) = weights.take(&from, shape)?;
        writer.add_tensor(to, ty, &shape, data)
    };
    let embeddings = format!("{root}embeddings");
    for (to, from, n_rows) in [
        ("token_embd", "word_embeddings", sizes.n_vocab),
        ("position_embd", "position_embeddings", sizes.n_ctx),
        ("token_types", "token_type_embeddings", sizes.n_types),
    ] {
        add(format!("{to}.weight"), format!("{embeddings}.{from}.weight"), &[n_rows, n_embd])?;
    }
    for part in ["weight", "bias"] {
        add(format!("token_embd_norm.{part}"), format!("{embeddings}.LayerNorm.{part}"), &[n_embd])?;
    }
    for layer in 0..sizes.n_layers {
        for (to, from, n_out, n_in) in [
            ("attn_q", "attention.self.query", n_embd, Some(n_embd)),
            ("attn_k", "attention.self.key", n_embd, Some(n_embd)),
            ("attn_v", "attention.self.value", n_embd, Some(n_embd)),
            ("attn_output", "attention.output.dense", n_embd, Some(n_embd)),
            ("attn_output_norm", "attention.output.LayerNorm", n_embd, None),
            ("ffn_up", "intermediate.dense", n_ff, Some(n_embd)),
            ("ffn_down", "output.dense", n_embd, Some(n_ff)),
            ("layer_output_norm", "output.LayerNorm", n_embd, None),
        ] {
            let (to, from) = (format!("blk.{layer}.{to}"), format!("{root}encoder.layer.{layer}.{from}"));
            let shape: Vec<usize> = std::iter::once(n_out).chain(n_in).collect();
            add(format!("{to}.weight"), format!("{from}.weight"), &shape)?;
            add(format!("{to}.bias"), format!("{from}.bias"), &[n_out])?;
        }
    }
    if is_ranker {
        add("cls.weight".to_owned(), format!("{root}pooler.dense.weight"), &[n_embd, n_embd])?;
        add("cls.bias".to_owned(), format!("{root}pooler.dense.bias"), &[n_embd])?;
        add("cls.output.weight".to_owned(), "classifier.weight".to_owned(), &[1, n_embd])?;
        add("cls.output.bias".to_owned(), "classifier.bias".to_owned(), &[1])?;
    }
    Ok(())
}
