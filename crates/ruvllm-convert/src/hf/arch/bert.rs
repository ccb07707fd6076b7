//! BERT and its relatives with learned positions: embeddings of sentences, and rankers of pairs.

use serde_json::Value as Json;

use super::keys::Keys;
use super::shared::{COMMON, common};
use super::{Architecture, PLAIN, TensorRule, VocabKind, tensors};
use crate::error::{ConvertError, shown};
use crate::hf::config::Assumed::{Count, Float};
use crate::hf::config::{Assumed, Config};

const LAYERS: &[TensorRule] = tensors! {
    "encoder.layer.{}.attention.self.query" => "blk.{}.attn_q";
    "encoder.layer.{}.attention.self.key" => "blk.{}.attn_k";
    "encoder.layer.{}.attention.self.value" => "blk.{}.attn_v";
    "encoder.layer.{}.attention.output.dense" => "blk.{}.attn_output";
    "encoder.layer.{}.attention.output.LayerNorm" => "blk.{}.attn_output_norm";
    "encoder.layer.{}.intermediate.dense" => "blk.{}.ffn_up";
    "encoder.layer.{}.output.dense" => "blk.{}.ffn_down";
    "encoder.layer.{}.output.LayerNorm" => "blk.{}.layer_output_norm";
};
const BERT: &[TensorRule] = tensors! {
    "embeddings.word_embeddings" => "token_embd";
    "embeddings.position_embeddings" => "position_embd";
    "embeddings.token_type_embeddings" => "token_types";
    "embeddings.LayerNorm" => "token_embd_norm";
    "embeddings.LayerNorm.gamma" => "token_embd_norm.weight";
    "embeddings.LayerNorm.beta" => "token_embd_norm.bias";
    "embeddings.position_ids" => "", Skip;
    "classifier.dense" => "cls";
    "classifier.out_proj" => "cls.output";
    "classifier" => "cls.output";
    "cls.predictions.bias" => "", Skip;
    "cls.predictions.decoder" => "", Skip;
    "cls.predictions.transform.dense" => "", Skip;
    "cls.predictions.transform.LayerNorm" => "", Skip;
    "cls.seq_relationship" => "", Skip;
};
/// A ranker looks at the first vector through it; others do not.
const POOLER: &[TensorRule] = tensors! {
    "pooler.dense" => "cls";
};
const NO_POOLER: &[TensorRule] = tensors! {
    "pooler.dense" => "", Skip;
    "lm_head.bias" => "", Skip;
    "lm_head.dense" => "", Skip;
    "lm_head.layer_norm" => "", Skip;
    "lm_head.decoder" => "", Skip;
};
const POSITIONS: &[TensorRule] = tensors! {
    "embeddings.position_embeddings" => "position_embd", Positions;
};
const DISTIL: &[TensorRule] = tensors! {
    "transformer.layer.{}.attention.q_lin" => "blk.{}.attn_q";
    "transformer.layer.{}.attention.k_lin" => "blk.{}.attn_k";
    "transformer.layer.{}.attention.v_lin" => "blk.{}.attn_v";
    "transformer.layer.{}.attention.out_lin" => "blk.{}.attn_output";
    "transformer.layer.{}.sa_layer_norm" => "blk.{}.attn_output_norm";
    "transformer.layer.{}.ffn.lin1" => "blk.{}.ffn_up";
    "transformer.layer.{}.ffn.lin2" => "blk.{}.ffn_down";
    "transformer.layer.{}.output_layer_norm" => "blk.{}.layer_output_norm";
    "vocab_transform" => "", Skip;
    "vocab_layer_norm" => "", Skip;
    "vocab_projector" => "", Skip;
    "pre_classifier" => "cls";
    "classifier.weight" => "cls.output.weight", Classes;
};

const ASSUMED: &[(&str, Assumed)] =
    &[("max_position_embeddings", Count(512)), ("layer_norm_eps", Float(1e-12)), ("type_vocab_size", Count(2))];

pub(super) const ALL: &[Architecture] = &[
    Architecture {
        classes: &["BertModel", "BertForMaskedLM", "BertForPreTraining"],
        name: "bert",
        prefixes: &["bert."],
        tensors: &[NO_POOLER, BERT, LAYERS],
        keys: &[COMMON],
        computed,
        assumed: ASSUMED,
        vocab: VocabKind::WordPiece,
        ..PLAIN
    },
    Architecture {
        classes: &["BertForSequenceClassification"],
        name: "bert",
        prefixes: &["bert."],
        tensors: &[POOLER, BERT, LAYERS],
        keys: &[COMMON],
        computed: ranker,
        assumed: ASSUMED,
        vocab: VocabKind::WordPiece,
        ..PLAIN
    },
    Architecture {
        classes: &["DistilBertModel", "DistilBertForMaskedLM", "DistilBertForSequenceClassification"],
        name: "bert",
        prefixes: &["distilbert."],
        tensors: &[DISTIL, BERT],
        keys: &[COMMON],
        computed,
        assumed: &[
            ("max_position_embeddings", Count(512)),
            ("layer_norm_eps", Float(1e-12)),
            ("hidden_size", Assumed::As("dim")),
            ("intermediate_size", Assumed::As("hidden_dim")),
            ("num_attention_heads", Assumed::As("n_heads")),
        ],
        vocab: VocabKind::WordPiece,
        ..PLAIN
    },
    Architecture {
        classes: &["RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification"],
        name: "bert",
        prefixes: &["roberta."],
        tensors: &[POSITIONS, NO_POOLER, BERT, LAYERS],
        keys: &[COMMON],
        computed: roberta,
        assumed: &[
            ("max_position_embeddings", Count(512)),
            ("layer_norm_eps", Float(1e-12)),
            ("type_vocab_size", Count(2)),
            ("pad_token_id", Count(1)),
        ],
        vocab: VocabKind::Roberta,
        ..PLAIN
    },
];

fn computed(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    for (key, known) in [("hidden_act", "gelu"), ("activation", "gelu"), ("position_embedding_type", "absolute")] {
        let other = config.get(&[key]).and_then(Json::as_str).filter(|&value| value != known);
        if let Some(other) = other {
            let line = format!("config.json: '{key}' is '{}', and only '{known}' is converted", shown(other));
            return Err(ConvertError::unsupported(line));
        }
    }
    common(config, keys)?;
    keys.set("attention.causal", false);
    Ok(())
}

fn ranker(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    computed(config, keys)?;
    keys.count("pooling_type", 4);
    Ok(())
}

fn roberta(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    computed(config, keys)?;
    keys.count("context_length", config.positive(&["max_position_embeddings"])?.saturating_sub(n_padding(config)?));
    Ok(())
}

/// Returns the rows of positions that stand for padding.
pub(in crate::hf) fn n_padding(config: &Config) -> Result<usize, ConvertError> {
    Ok(1 + config.count(&["pad_token_id"])?)
}
