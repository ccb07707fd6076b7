//! GPT-2, GPT-NeoX, StarCoder 2 and StableLM.

use super::keys::{KeyRule, Keys, keys};
use super::shared::{ATTENTION, COMMON, EDGES, GATED_MLP, PRE_NORMS, blocks, blocks_and_rope, common, rotate_share};
use super::{Architecture, PLAIN, TensorRule, tensors};
use crate::error::ConvertError;
use crate::hf::config::Assumed::{Count, Flag, Float};
use crate::hf::config::Config;

const GPT2: &[TensorRule] = tensors! {
    "wte" => "token_embd";
    "wpe" => "position_embd";
    "ln_f" => "output_norm";
    "lm_head" => "output";
    "h.{}.ln_1" => "blk.{}.attn_norm";
    "h.{}.ln_2" => "blk.{}.ffn_norm";
    "h.{}.attn.bias" => "", Skip;
    "h.{}.attn.masked_bias" => "", Skip;
    "h.{}.attn.c_attn.weight" => "blk.{}.attn_qkv.weight", Transposed;
    "h.{}.attn.c_attn.bias" => "blk.{}.attn_qkv.bias";
    "h.{}.attn.c_proj.weight" => "blk.{}.attn_output.weight", Transposed;
    "h.{}.attn.c_proj.bias" => "blk.{}.attn_output.bias";
    "h.{}.mlp.c_fc.weight" => "blk.{}.ffn_up.weight", Transposed;
    "h.{}.mlp.c_fc.bias" => "blk.{}.ffn_up.bias";
    "h.{}.mlp.c_proj.weight" => "blk.{}.ffn_down.weight", Transposed;
    "h.{}.mlp.c_proj.bias" => "blk.{}.ffn_down.bias";
};
const NEOX: &[TensorRule] = tensors! {
    "gpt_neox.embed_in" => "token_embd";
    "gpt_neox.final_layer_norm" => "output_norm";
    "embed_out" => "output";
    "gpt_neox.layers.{}.input_layernorm" => "blk.{}.attn_norm";
    "gpt_neox.layers.{}.post_attention_layernorm" => "blk.{}.ffn_norm";
    "gpt_neox.layers.{}.attention.query_key_value" => "blk.{}.attn_qkv", QkvByHead;
    "gpt_neox.layers.{}.attention.dense" => "blk.{}.attn_output";
    "gpt_neox.layers.{}.mlp.dense_h_to_4h" => "blk.{}.ffn_up";
    "gpt_neox.layers.{}.mlp.dense_4h_to_h" => "blk.{}.ffn_down";
};
const STARCODER2: &[TensorRule] = tensors! {
    "model.layers.{}.mlp.c_fc" => "blk.{}.ffn_up";
    "model.layers.{}.mlp.c_proj" => "blk.{}.ffn_down";
};
const STABLELM: &[TensorRule] = tensors! {
    "model.layers.{}.self_attn.q_layernorm.norms.{}" => "blk.{}.attn_q_norm", Stack;
    "model.layers.{}.self_attn.k_layernorm.norms.{}" => "blk.{}.attn_k_norm", Stack;
};

const GPT2_KEYS: &[KeyRule] = keys! {
    "context_length" <- NeedCount ["n_ctx", "n_positions"];
    "embedding_length" <- NeedCount ["n_embd"];
    "attention.head_count" <- NeedCount ["n_head"];
    "attention.layer_norm_epsilon" <- NeedFloat ["layer_norm_epsilon"];
};
const NEOX_KEYS: &[KeyRule] = keys! {
    "context_length" <- NeedCount ["max_position_embeddings"];
    "embedding_length" <- NeedCount ["hidden_size"];
    "feed_forward_length" <- NeedCount ["intermediate_size"];
    "attention.head_count" <- NeedCount ["num_attention_heads"];
    "use_parallel_residual" <- Flag ["use_parallel_residual"];
    "attention.layer_norm_epsilon" <- NeedFloat ["layer_norm_eps"];
};
const STABLELM_KEYS: &[KeyRule] = keys! {
    "context_length" <- NeedCount ["max_position_embeddings"];
    "embedding_length" <- NeedCount ["hidden_size"];
    "feed_forward_length" <- NeedCount ["intermediate_size"];
    "attention.head_count" <- NeedCount ["num_attention_heads"];
    "attention.head_count_kv" <- NeedCount ["num_key_value_heads"];
    "use_parallel_residual" <- Flag ["use_parallel_residual"];
    "attention.layer_norm_epsilon" <- NeedFloat ["norm_eps", "layer_norm_eps"];
};

pub(super) const ALL: &[Architecture] = &[
    Architecture {
        classes: &["GPT2LMHeadModel"],
        name: "gpt2",
        prefixes: &["transformer."],
        tensors: &[GPT2],
        keys: &[GPT2_KEYS],
        computed: gpt2,
        assumed: &[("n_positions", Count(1024)), ("layer_norm_epsilon", Float(1e-5))],
        ..PLAIN
    },
    Architecture {
        classes: &["GPTNeoXForCausalLM"],
        name: "gptneox",
        tensors: &[NEOX],
        keys: &[NEOX_KEYS],
        computed: rotates_a_share,
        assumed: &[
            ("max_position_embeddings", Count(2048)),
            ("layer_norm_eps", Float(1e-5)),
            ("use_parallel_residual", Flag(true)),
        ],
        ..PLAIN
    },
    Architecture {
        classes: &["Starcoder2ForCausalLM"],
        name: "starcoder2",
        tensors: &[EDGES, PRE_NORMS, ATTENTION, STARCODER2],
        keys: &[COMMON],
        computed: common,
        assumed: &[
            ("max_position_embeddings", Count(4096)),
            ("num_key_value_heads", Count(2)),
            ("norm_epsilon", Float(1e-5)),
            ("rope_theta", Float(10000.0)),
        ],
        ..PLAIN
    },
    Architecture {
        classes: &["StableLmForCausalLM", "StableLMEpochForCausalLM"],
        name: "stablelm",
        tensors: &[EDGES, PRE_NORMS, ATTENTION, GATED_MLP, STABLELM],
        keys: &[STABLELM_KEYS],
        computed: rotates_a_share,
        assumed: &[
            ("max_position_embeddings", Count(4096)),
            ("num_key_value_heads", Count(32)),
            ("layer_norm_eps", Float(1e-5)),
            ("use_parallel_residual", Flag(false)),
        ],
        ..PLAIN
    },
];

fn gpt2(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    blocks(config, keys)?;
    keys.count("feed_forward_length", 4 * config.n_embd()?);
    Ok(())
}

/// Sets the dimensions that RoPE rotates: a quarter of a head where nothing else is said.
fn rotates_a_share(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    blocks_and_rope(config, keys)?;
    rotate_share(config, keys, 0.25)
}
