//! Descriptions of golden files, and lines about files that contradict themselves.

use ruvllm_gguf::Value;

use crate::testing::read_with;
use crate::{MixerSpec, ModelSpec};

fn read(name: &str) -> ModelSpec {
    read_with(name, |_| ()).expect("a model")
}

/// Reads a golden with another number in its metadata.
fn refusal(name: &str, key: &str, value: impl Into<Value>) -> String {
    read_with(name, |metadata| metadata.set(key, value)).expect_err("the file contradicts itself").to_string()
}

#[test]
fn layers_are_what_their_files_have() {
    let mamba = read("mamba-a");
    assert!(mamba.layers.iter().all(|layer| layer.ffn.is_none() && matches!(layer.mixer, MixerSpec::Mamba(_))));
    let MixerSpec::Mamba2(own) = &read("mamba2-b").layers[1].mixer else { panic!("it is one") };
    assert_eq!((own.n_heads, own.n_groups, own.n_state, own.z.n_out(), own.xbc.n_out()), (6, 2, 20, 96, 176));
    assert_eq!(own.norm.as_ref().map(|norm| (norm.weight.n_rows(), norm.weight.n_cols)), Some((2, 48)));
    let falcon = read("falcon-h1-a");
    let layer = &falcon.layers[0];
    assert!(layer.ffn.is_some() && matches!(layer.mixer, MixerSpec::AttentionAndMamba2(..)));
    // Linear layers have the numbers 0, 1, 2, … whatever block they are in.
    assert!(falcon.linears().iter().enumerate().all(|(i, linear)| linear.id == i));
}

#[test]
fn only_falcon_mamba_norms_inside() {
    let eps = |name: &str| match &read(name).layers[0].mixer {
        MixerSpec::Mamba(own) => own.inner_eps,
        _ => panic!("it is one"),
    };
    assert_eq!((eps("mamba-a"), eps("mamba-b")), (None, Some(1e-5)));
}

#[test]
fn sizes_have_bounds() {
    let refused = |name: &str, key: &str, value: u32, expected: &str| {
        assert_eq!(refusal(name, key, value), expected, "{key} = {value}");
    };
    refused("mamba-a", "mamba.ssm.state_size", 4097, "a state of 4097 values a channel is not one");
    refused("mamba-a", "mamba.ssm.state_size", 0, "metadata mamba.ssm.state_size is 0");
    refused("mamba-a", "mamba.ssm.conv_kernel", 1, "a convolution of 1 taps is not one");
    refused("mamba-a", "mamba.ssm.conv_kernel", 65, "a convolution of 65 taps is not one");
    let line = "tensor 'blk.0.ssm_in.weight' has shape [64, 256], the model needs [64, 1000000]";
    refused("mamba-a", "mamba.ssm.inner_size", 500_000, line);
    let line = "tensor 'blk.0.ssm_x.weight' has shape [128, 36], the model needs [128, 48]";
    refused("mamba-a", "mamba.ssm.state_size", 22, line);
    let line = "128 channels cannot be 8 heads in 3 groups";
    refused("mamba2-a", "mamba2.ssm.group_count", 3, line);
    let line = "128 channels cannot be 7 heads in 1 groups";
    refused("mamba2-a", "mamba2.ssm.time_step_rank", 7, line);
    let line = "tensor 'blk.0.ssm_in.weight' has shape [64, 164], the model needs [64, 196]";
    refused("falcon-h1-a", "falcon-h1.ssm.group_count", 2, line);
    let line = "metadata mamba2.ssm.group_count = 16777217 is beyond any model";
    refused("mamba2-a", "mamba2.ssm.group_count", (1 << 24) + 1, line);
}
