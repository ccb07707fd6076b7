//! How the modules of Hugging Face's models are called in GGUF files.
//!
//! The names are those of `gguf-py`'s `tensor_mapping.py`, module by module; a row holds for the architectures that have
//! such a module. What llama.cpp's converter does to the rows of a weight, it must do to those of `B` as well.

use super::ModelFacts;
use crate::adapter::RowOrder;

/// What stands before the number of a layer.
const LAYERS: &[&str] = &[
    "model.layers.",
    "model.language_model.layers.",
    "language_model.model.layers.",
    "transformer.h.",
    "gpt_neox.layers.",
    "bert.encoder.layer.",
    "encoder.layer.",
    "layers.",
    "h.",
];

/// Module of a layer → tensor of a block. Where two modules have the same tensor, an architecture uses one of them.
const MODULES: &[(&str, &str)] = &[
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.out_proj", "attn_output"),
    ("self_attn.dense", "attn_output"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("attention.query_key_value", "attn_qkv"),
    ("attention.dense", "attn_output"),
    ("attention.self.query", "attn_q"),
    ("attention.self.key", "attn_k"),
    ("attention.self.value", "attn_v"),
    ("attention.output.dense", "attn_output"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.fc1", "ffn_up"),
    ("mlp.fc2", "ffn_down"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
    ("mlp.dense_h_to_4h", "ffn_up"),
    ("mlp.dense_4h_to_h", "ffn_down"),
    ("intermediate.dense", "ffn_up"),
    ("output.dense", "ffn_down"),
    ("feed_forward.w1", "ffn_gate"),
    ("feed_forward.w3", "ffn_up"),
    ("feed_forward.w2", "ffn_down"),
    ("conv.in_proj", "shortconv.in_proj"),
    ("conv.out_proj", "shortconv.out_proj"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.router", "ffn_gate_inp"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("block_sparse_moe.router.layer", "ffn_gate_inp"),
];

/// Module of an expert, its number as `*` → tensor of all experts.
const EXPERTS: &[(&str, &str)] = &[
    ("block_sparse_moe.experts.*.w1", "ffn_gate_exps"),
    ("block_sparse_moe.experts.*.w3", "ffn_up_exps"),
    ("block_sparse_moe.experts.*.w2", "ffn_down_exps"),
    ("mlp.experts.*.gate_proj", "ffn_gate_exps"),
    ("mlp.experts.*.up_proj", "ffn_up_exps"),
    ("mlp.experts.*.down_proj", "ffn_down_exps"),
];

/// Modules outside the layers → tensor.
const OTHERS: &[(&str, &str)] = &[("lm_head", "output"), ("embed_out", "output")];

/// Architectures whose queries and keys the converter permutes.
const PERMUTED: [&str; 4] = ["llama", "granite", "granitemoe", "smollm3"];

/// Returns the target of a module (`model.layers.0.self_attn.q_proj` → `blk.0.attn_q`) and how its rows are ordered;
/// `None` if it is no linear layer that is known.
pub fn to_gguf(module: &str, model: &ModelFacts) -> Option<(String, RowOrder)> {
    if let Some((_, tensor)) = OTHERS.iter().find(|(name, _)| *name == module) {
        return Some(((*tensor).to_owned(), RowOrder::Same));
    }
    let rest = LAYERS.iter().find_map(|prefix| module.strip_prefix(prefix))?;
    let (layer, name) = rest.split_once('.')?;
    let layer: usize = number(layer)?;
    if let Some((_, tensor)) = MODULES.iter().find(|(known, _)| *known == name) {
        return Some((format!("blk.{layer}.{tensor}"), order(tensor, layer, model)));
    }
    EXPERTS.iter().find_map(|(pattern, tensor)| {
        let (before, after) = pattern.split_once('*')?;
        let expert = number(name.strip_prefix(before)?.strip_suffix(after)?)?;
        Some((format!("blk.{layer}.{tensor}.{expert}"), RowOrder::Same))
    })
}

/// Returns the module of a target in the model's class of `transformers`, and how its rows are ordered there.
pub fn to_hf(target: &str, model: &ModelFacts) -> Option<(String, RowOrder)> {
    let arch = model.arch.as_str();
    if target == "output" {
        let head = if arch == "gptneox" { "embed_out" } else { "lm_head" };
        return Some((head.to_owned(), RowOrder::Same));
    }
    let (layer, name) = target.strip_prefix("blk.")?.split_once('.')?;
    let layer: usize = number(layer)?;
    let prefix = match arch {
        "gpt2" => "transformer.h.",
        "gptneox" => "gpt_neox.layers.",
        "bert" => "encoder.layer.",
        _ => "model.layers.",
    };
    let module = match name.rsplit_once('.').and_then(|(tensor, expert)| Some((tensor, number(expert)?))) {
        Some((tensor, expert)) => {
            let is_own = |pattern: &str| pattern.starts_with("block_sparse_moe") == (arch == "llama");
            let pattern = EXPERTS.iter().find(|(pattern, own)| *own == tensor && is_own(pattern))?.0;
            pattern.replace('*', &expert.to_string())
        }
        None => module_of(name, arch)?.to_owned(),
    };
    Some((format!("{prefix}{layer}.{module}"), order(name, layer, model)))
}

/// Returns the module of a block's tensor: the first that the architecture's class has.
fn module_of(tensor: &str, arch: &str) -> Option<&'static str> {
    let is_own = |module: &str| {
        let own: &[&str] = match module {
            "self_attn.out_proj" | "feed_forward.w1" | "feed_forward.w2" | "feed_forward.w3" => &["lfm2"],
            "self_attn.dense" | "mlp.fc1" | "mlp.fc2" => &["phi2"],
            "self_attn.qkv_proj" => &["phi3"],
            "mlp.gate_up_proj" => &["phi3", "glm4"],
            "attn.c_attn" | "attn.c_proj" => &["gpt2"],
            "mlp.c_fc" | "mlp.c_proj" => &["gpt2", "starcoder2"],
            "mlp.router" => &["gpt-oss"],
            "block_sparse_moe.gate" => &["llama"],
            "block_sparse_moe.router.layer" => &["granitemoe"],
            _ if module.starts_with("attention.self") || module.contains("put.dense") => &["bert"],
            "intermediate.dense" => &["bert"],
            "attention.query_key_value" | "attention.dense" | "mlp.dense_h_to_4h" | "mlp.dense_4h_to_h" => &["gptneox"],
            _ => return None,
        };
        Some(own.contains(&arch))
    };
    let found = |(module, name): &&(&'static str, &'static str)| *name == tensor && is_own(module) == Some(true);
    // A module of the architecture's own comes before those that most have.
    let own = MODULES.iter().find(found);
    own.or_else(|| MODULES.iter().find(|(module, name)| *name == tensor && is_own(module).is_none())).map(|row| row.0)
}

fn order(tensor: &str, layer: usize, model: &ModelFacts) -> RowOrder {
    let heads = |counts: &[usize]| counts.get(layer).copied().unwrap_or(0);
    match tensor {
        "attn_q" if PERMUTED.contains(&model.arch.as_str()) => RowOrder::Rotary { n_heads: heads(&model.n_heads) },
        "attn_k" if PERMUTED.contains(&model.arch.as_str()) => RowOrder::Rotary { n_heads: heads(&model.n_kv_heads) },
        "attn_qkv" if model.arch == "gptneox" => RowOrder::ByHead { n_heads: heads(&model.n_heads) },
        _ => RowOrder::Same,
    }
}

/// Reads a number of at most five digits.
fn number(text: &str) -> Option<usize> {
    let is_number = !text.is_empty() && text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(arch: &str) -> ModelFacts {
        ModelFacts { arch: arch.to_owned(), n_heads: vec![4; 2], n_kv_heads: vec![2; 2], n_experts: 4 }
    }

    #[test]
    fn modules_have_tensors_and_back() {
        let rows = [
            ("llama", "model.layers.1.self_attn.k_proj", "blk.1.attn_k"),
            ("llama", "model.layers.0.block_sparse_moe.experts.3.w2", "blk.0.ffn_down_exps.3"),
            ("llama", "model.layers.0.block_sparse_moe.gate", "blk.0.ffn_gate_inp"),
            ("qwen2moe", "model.layers.0.mlp.experts.2.up_proj", "blk.0.ffn_up_exps.2"),
            ("qwen2moe", "model.layers.0.mlp.shared_expert_gate", "blk.0.ffn_gate_inp_shexp"),
            ("qwen2", "lm_head", "output"),
            ("phi3", "model.layers.1.self_attn.qkv_proj", "blk.1.attn_qkv"),
            ("phi3", "model.layers.1.mlp.gate_up_proj", "blk.1.ffn_up"),
            ("phi2", "model.layers.1.self_attn.dense", "blk.1.attn_output"),
            ("phi2", "model.layers.1.mlp.fc1", "blk.1.ffn_up"),
            ("gpt2", "transformer.h.0.attn.c_attn", "blk.0.attn_qkv"),
            ("gpt2", "transformer.h.0.mlp.c_proj", "blk.0.ffn_down"),
            ("gptneox", "gpt_neox.layers.0.attention.query_key_value", "blk.0.attn_qkv"),
            ("gptneox", "embed_out", "output"),
            ("lfm2", "model.layers.0.conv.in_proj", "blk.0.shortconv.in_proj"),
            ("lfm2", "model.layers.0.self_attn.out_proj", "blk.0.attn_output"),
            ("starcoder2", "model.layers.0.mlp.c_fc", "blk.0.ffn_up"),
            ("starcoder2", "model.layers.0.self_attn.o_proj", "blk.0.attn_output"),
            ("bert", "encoder.layer.1.attention.self.query", "blk.1.attn_q"),
            ("bert", "encoder.layer.1.intermediate.dense", "blk.1.ffn_up"),
            ("bert", "encoder.layer.1.output.dense", "blk.1.ffn_down"),
            ("bert", "encoder.layer.1.attention.output.dense", "blk.1.attn_output"),
            ("gemma3", "model.layers.0.mlp.gate_proj", "blk.0.ffn_gate"),
        ];
        for (arch, module, target) in rows {
            let facts = facts(arch);
            let (found, order) = to_gguf(module, &facts).unwrap_or_else(|| panic!("{module}"));
            assert_eq!(found, target, "{module}");
            assert_eq!(to_hf(target, &facts), Some((module.to_owned(), order)), "{arch} {target}");
        }
    }

    #[test]
    fn order_follows_the_heads_and_strange_names_lead_nowhere() {
        let order = |arch, module| to_gguf(module, &facts(arch)).expect("a module").1;
        assert_eq!(order("llama", "model.layers.0.self_attn.q_proj"), RowOrder::Rotary { n_heads: 4 });
        assert_eq!(order("llama", "model.layers.0.self_attn.k_proj"), RowOrder::Rotary { n_heads: 2 });
        assert_eq!(order("llama", "model.layers.0.self_attn.v_proj"), RowOrder::Same);
        assert_eq!(order("qwen2", "model.layers.0.self_attn.q_proj"), RowOrder::Same);
        assert_eq!(order("gptneox", "gpt_neox.layers.1.attention.query_key_value"), RowOrder::ByHead { n_heads: 4 });
        for module in [
            "vision_tower.encoder.layers.0.self_attn.q_proj",
            "model.layers.x.self_attn.q_proj",
            "model.layers.999999.self_attn.q_proj",
            "model.layers.0.self_attn.q_proj.more",
            "../../etc/passwd",
            "model.embed_tokens",
            "",
        ] {
            assert_eq!(to_gguf(module, &facts("llama")), None, "{module}");
        }
    }
}
