//! Both layouts of files, the magnitude of scores, and lines about files that contradict themselves.

use ruvllm_kernels::rope::RopeScaling;

use crate::testing::read_with;
use crate::{ExpansionSpec, FfnSpec, LatentAttentionSpec, MixerSpec, ModelSpec};

fn read(name: &str) -> ModelSpec {
    read_with(name, |_| ()).expect("a model")
}

fn latent(spec: &ModelSpec) -> &LatentAttentionSpec {
    match &spec.layers[0].mixer {
        MixerSpec::LatentAttention(own) => own,
        _ => panic!("it is one"),
    }
}

#[test]
fn both_layouts_are_read() {
    let (new, old) = (read("deepseek2-a"), read("deepseek2-b"));
    let (new, old) = (latent(&new), latent(&old));
    assert!(new.q_low.is_some() && old.q_low.is_none());
    let ExpansionSpec::Absorbed { k, v } = &new.expansion else { panic!("a matrix a head") };
    assert_eq!((k.len(), k[3].n_out(), k[3].n_in(), v[3].n_out(), v[3].n_in()), (4, 32, 16, 16, 32));
    let ExpansionSpec::Joint(kv) = &old.expansion else { panic!("one matrix") };
    assert_eq!((kv.n_out(), kv.n_in(), old.n_nope, old.n_rot, old.v_dim), (96, 32, 16, 8, 16));
}

#[test]
fn the_first_layers_are_dense() {
    let kinds: Vec<bool> =
        read("deepseek2-a").layers.iter().map(|layer| matches!(layer.ffn, Some(FfnSpec::Moe(_)))).collect();
    assert_eq!(kinds, [false, true, true]);
}

/// The log multiplier's magnitude is that of scores, and rotated values keep theirs.
#[test]
fn scores_have_the_magnitude_of_yarn() {
    let spec = read("deepseek2-b");
    let expected = (1.0 + 0.0707 * 4f32.ln()).powi(2) / 24f32.sqrt();
    assert!((latent(&spec).scale - expected).abs() < 1e-6, "{}", latent(&spec).scale);
    let RopeScaling::Yarn { attn_factor, factor, .. } = spec.ropes[0].scaling else { panic!("it is scaled") };
    assert!((attn_factor * (1.0 + 0.1 * factor.ln()) - 1.0).abs() < 1e-6);
    assert_eq!(latent(&read("deepseek2-a")).scale, 1.0 / 32f32.sqrt());
}

#[test]
fn groups_of_experts_have_bounds() {
    let groups = |n_groups: u32, n_used: u32| {
        let spec = read_with("deepseek2-a", |metadata| {
            metadata.set("deepseek2.expert_group_count", n_groups);
            metadata.set("deepseek2.expert_group_used_count", n_used);
        });
        spec.map(|spec| match &spec.layers[1].ffn {
            Some(FfnSpec::Moe(moe)) => moe.groups.map(|groups| (groups.n_groups, groups.n_used)),
            _ => panic!("it has experts"),
        })
    };
    assert_eq!(groups(2, 1).expect("two of four"), Some((2, 1)));
    assert_eq!(groups(1, 1).expect("no groups"), None);
    for (n_groups, n_used) in [(3, 1), (2, 3), (4, 2), (65, 1)] {
        let line = format!("2 of 4 experts cannot be chosen by {n_used} of {n_groups} groups");
        assert_eq!(groups(n_groups, n_used).expect_err("it cannot be").to_string(), line);
    }
}

#[test]
fn sizes_have_bounds() {
    let refused = |key: &str, value: u32, expected: &str| {
        let error = read_with("deepseek2-a", |metadata| metadata.set(format!("deepseek2.{key}"), value));
        assert_eq!(error.expect_err("the file contradicts itself").to_string(), expected, "{key} = {value}");
    };
    refused("attention.key_length_mla", 16, "keys of 16 values have none beside the 16 that are rotated");
    refused("attention.kv_lora_rank", 0, "metadata deepseek2.attention.kv_lora_rank is 0");
    let line = "tensor 'blk.0.attn_kv_a_mqa.weight' has shape [64, 48], the model needs [64, 47]";
    refused("attention.kv_lora_rank", 31, line);
    let line = "tensor 'blk.0.attn_v_b.weight' has shape [32, 16, 4], the model needs [32, 17, 4]";
    refused("attention.value_length_mla", 17, line);
    refused(
        "expert_group_count",
        2,
        "metadata deepseek2.expert_group_used_count is missing; the file is not a complete model",
    );
    refused("expert_feed_forward_length", 0, "metadata expert_feed_forward_length is missing or 0");
}
