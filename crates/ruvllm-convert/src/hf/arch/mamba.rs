//! Mamba, Mamba 2, and Falcon-H1, which has attention beside it and multipliers that become part of the weights.

use super::keys::{KeyRule, Keys, keys};
use super::shared::{VOCAB_SIZE, blocks};
use super::{Architecture, PLAIN, TensorRule, VocabKind, tensors};
use crate::error::ConvertError;
use crate::hf::config::Assumed::{Count, Flag, Float};
use crate::hf::config::Config;

const EDGES: &[TensorRule] = tensors! {
    "backbone.embedding" => "token_embd";
    "backbone.embeddings" => "token_embd";
    "backbone.norm_f" => "output_norm";
    "lm_head" => "output";
    "backbone.layers.{}.norm" => "blk.{}.attn_norm";
    "backbone.layers.{}.mixer.in_proj" => "blk.{}.ssm_in";
    "backbone.layers.{}.mixer.conv1d" => "blk.{}.ssm_conv1d", Squeezed;
    "backbone.layers.{}.mixer.out_proj" => "blk.{}.ssm_out";
};
const MAMBA: &[TensorRule] = tensors! {
    "backbone.layers.{}.mixer.x_proj" => "blk.{}.ssm_x";
    "backbone.layers.{}.mixer.dt_proj" => "blk.{}.ssm_dt";
    "backbone.layers.{}.mixer.A_log" => "blk.{}.ssm_a", NegExp;
    "backbone.layers.{}.mixer.D" => "blk.{}.ssm_d";
};
const MAMBA2: &[TensorRule] = tensors! {
    "backbone.layers.{}.mixer.dt_bias" => "blk.{}.ssm_dt.bias";
    "backbone.layers.{}.mixer.A_log" => "blk.{}.ssm_a", NegExpColumn;
    "backbone.layers.{}.mixer.D" => "blk.{}.ssm_d", Column;
    "backbone.layers.{}.mixer.norm" => "blk.{}.ssm_norm", Groups;
};
const FALCON_H1: &[TensorRule] = tensors! {
    "model.embed_tokens" => "token_embd", Scaled(&["embedding_multiplier"]);
    "model.final_layernorm" => "output_norm";
    "lm_head" => "output", Scaled(&["lm_head_multiplier"]);
    "model.layers.{}.input_layernorm" => "blk.{}.attn_norm";
    "model.layers.{}.pre_ff_layernorm.weight" => "blk.{}.ffn_norm";
    "model.layers.{}.self_attn.q_proj" => "blk.{}.attn_q", Scaled(&["attention_in_multiplier"]);
    "model.layers.{}.self_attn.k_proj" => "blk.{}.attn_k", Scaled(&["key_multiplier", "attention_in_multiplier"]);
    "model.layers.{}.self_attn.v_proj" => "blk.{}.attn_v", Scaled(&["attention_in_multiplier"]);
    "model.layers.{}.self_attn.o_proj" => "blk.{}.attn_output", Scaled(&["attention_out_multiplier"]);
    "model.layers.{}.feed_forward.gate_proj" => "blk.{}.ffn_gate", Scaled(&["mlp_multipliers:0"]);
    "model.layers.{}.feed_forward.up_proj" => "blk.{}.ffn_up";
    "model.layers.{}.feed_forward.down_proj" => "blk.{}.ffn_down", Scaled(&["mlp_multipliers:1"]);
    "model.layers.{}.mamba.in_proj" => "blk.{}.ssm_in", ScaledParts;
    "model.layers.{}.mamba.conv1d" => "blk.{}.ssm_conv1d", Squeezed;
    "model.layers.{}.mamba.dt_bias" => "blk.{}.ssm_dt.bias";
    "model.layers.{}.mamba.A_log" => "blk.{}.ssm_a", NegExpColumn;
    "model.layers.{}.mamba.D" => "blk.{}.ssm_d", Column;
    "model.layers.{}.mamba.norm" => "blk.{}.ssm_norm", Groups;
    "model.layers.{}.mamba.out_proj" => "blk.{}.ssm_out", Scaled(&["ssm_out_multiplier"]);
};

const FALCON_H1_KEYS: &[KeyRule] = keys! {
    "context_length" <- Count ["max_position_embeddings"];
    "feed_forward_length" <- NeedCount ["intermediate_size"];
    "attention.head_count" <- NeedCount ["num_attention_heads"];
    "attention.head_count_kv" <- NeedCount ["num_key_value_heads"];
    "attention.key_length" <- NeedCount ["head_dim"];
    "attention.value_length" <- NeedCount ["head_dim"];
};

pub(super) const ALL: &[Architecture] = &[
    Architecture {
        classes: &["MambaForCausalLM", "MambaLMHeadModel"],
        name: "mamba",
        tensors: &[EDGES, MAMBA],
        computed: mamba,
        vocab: VocabKind::Padded(8),
        ..PLAIN
    },
    Architecture {
        classes: &["Mamba2ForCausalLM"],
        name: "mamba2",
        prefixes: &["model."],
        tensors: &[EDGES, MAMBA2],
        computed: mamba2,
        vocab: VocabKind::Padded(16),
        ..PLAIN
    },
    Architecture {
        classes: &["FalconH1ForCausalLM"],
        name: "falcon-h1",
        tensors: &[FALCON_H1],
        keys: &[VOCAB_SIZE],
        computed: falcon_h1,
        assumed: &[
            ("max_position_embeddings", Count(8192)),
            ("rms_norm_eps", Float(1e-5)),
            ("mamba_d_conv", Count(4)),
            ("mamba_d_state", Count(256)),
            ("mamba_n_groups", Count(1)),
            ("mamba_rms_norm", Flag(true)),
            ("mamba_norm_before_gate", Flag(true)),
            ("rope_theta", Float(100_000.0)),
            ("embedding_multiplier", Float(1.0)),
            ("lm_head_multiplier", Float(1.0)),
            ("key_multiplier", Float(1.0)),
            ("attention_in_multiplier", Float(1.0)),
            ("attention_out_multiplier", Float(1.0)),
            ("ssm_in_multiplier", Float(1.0)),
            ("ssm_out_multiplier", Float(1.0)),
        ],
        ..PLAIN
    },
];

/// Context that these files name, which have none of their own.
const N_CTX: usize = 1 << 20;

/// Sets what both kinds have.
fn state_space(config: &Config, keys: &mut Keys<'_>, n_state: usize) -> Result<(), ConvertError> {
    blocks(config, keys)?;
    keys.count("context_length", N_CTX);
    keys.count("embedding_length", config.n_embd()?);
    // Loaders want them, and they are not there.
    keys.count("feed_forward_length", 0);
    keys.count("attention.head_count", 0);
    let or = |names: &[&str], default: usize| Ok::<_, ConvertError>(config.count_if_any(names)?.unwrap_or(default));
    keys.count("ssm.conv_kernel", or(&["conv_kernel", "d_conv", "mamba_d_conv"], 4)?);
    keys.count("ssm.state_size", or(&["state_size", "d_state", "mamba_d_state"], n_state)?);
    let eps = config.float_if_any(&["layer_norm_epsilon", "rms_norm_eps"])?.unwrap_or(1e-5);
    keys.float("attention.layer_norm_rms_epsilon", eps);
    Ok(())
}

fn mamba(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    state_space(config, keys, 16)?;
    let n_embd = config.n_embd()?;
    let n_inner = config.count_if_any(&["intermediate_size", "d_inner"])?.unwrap_or(2 * n_embd);
    if n_inner != 2 * n_embd {
        let line =
            format!("config.json: a state space of {n_inner} in rows of {n_embd}; only twice as many is converted");
        return Err(ConvertError::unsupported(line));
    }
    keys.count("ssm.inner_size", n_inner);
    let rank = config.count_if_any(&["time_step_rank", "dt_rank"]).unwrap_or(None);
    keys.count("ssm.time_step_rank", rank.unwrap_or(n_embd.div_ceil(16)));
    keys.set("ssm.dt_b_c_rms", false);
    Ok(())
}

/// Returns the width of a state space of the second kind.
pub(in crate::hf) fn n_inner(config: &Config) -> Result<usize, ConvertError> {
    match config.count_if_any(&["mamba_d_ssm", "d_inner"])? {
        Some(n) if n > 0 => Ok(n),
        _ => Ok(config.count_if_any(&["mamba_expand", "expand"])?.unwrap_or(2) * config.n_embd()?),
    }
}

/// Returns the groups of a state space of the second kind.
pub(in crate::hf) fn n_groups(config: &Config) -> Result<usize, ConvertError> {
    Ok(config.count_if_any(&["n_groups", "mamba_n_groups"])?.filter(|&n| n > 0).unwrap_or(1))
}

fn mamba2(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    state_space(config, keys, 128)?;
    groups(config, keys, &["mamba_d_head", "head_dim"])
}

fn groups(config: &Config, keys: &mut Keys<'_>, head: &[&str]) -> Result<(), ConvertError> {
    let (n_inner, head_dim) = (n_inner(config)?, config.count_if_any(head)?.filter(|&n| n > 0).unwrap_or(64));
    if n_inner % head_dim != 0 {
        let line = format!("config.json: a state space of {n_inner} has no heads of {head_dim}");
        return Err(ConvertError::invalid(line));
    }
    keys.count("ssm.inner_size", n_inner);
    keys.count("ssm.time_step_rank", n_inner / head_dim);
    keys.count("ssm.group_count", n_groups(config)?);
    Ok(())
}

fn falcon_h1(config: &Config, keys: &mut Keys<'_>) -> Result<(), ConvertError> {
    if config.is("mamba_rms_norm") && config.is("mamba_norm_before_gate") {
        let line = "config.json: mamba_norm_before_gate is true; GGUF files have the norm behind the gate, so such a model would \
                    answer wrongly";
        return Err(ConvertError::unsupported(line));
    }
    state_space(config, keys, 128)?;
    groups(config, keys, &["mamba_d_head"])?;
    keys.float("rope.freq_base", config.rope_number("rope_theta")?);
    keys.apply(FALCON_H1_KEYS, config)
}
