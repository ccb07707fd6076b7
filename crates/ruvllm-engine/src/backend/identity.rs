//! What a sequence's keys and values depend on beside its tokens.

use ruvllm_gguf::GgufFile;
use ruvllm_kernels::Isa;
use ruvllm_kvcache::{KvType, NamespaceBuilder};

use crate::model::Model;

/// Bytes of each tensor that go into the identity of a file: its first and its middle ones.
const SAMPLE: usize = 512;

/// Positions at which the angles of a rope are taken; settings that differ differ at one of them.
const POSITIONS: [u32; 3] = [1, 1_000, 100_000];

/// Returns what a file adds to the namespace of its sequences: the hyper-parameters, every tensor's name, type and shape
/// and a sample of its bytes. A fine-tuned model differs in its samples.
///
/// To be called before the tensors are taken over: it touches pages that loading reads anyway.
pub(super) fn of_file(file: &GgufFile) -> NamespaceBuilder {
    let mut builder = NamespaceBuilder::new("ruvllm kv 1").part("bytes", &file.total_bytes().to_le_bytes());
    // The vocabulary is long and decides nothing here.
    for (key, value) in file.metadata().iter().filter(|(key, _)| !key.starts_with("tokenizer.")) {
        builder = builder.part(key, format!("{value:?}").as_bytes());
    }
    for tensor in file.tensors() {
        let data = file.data(tensor);
        let middle = data.len() / 2;
        builder = builder
            .part(&tensor.name, format!("{} {:?}", tensor.ty.name(), tensor.shape).as_bytes())
            .part("start", &data[..data.len().min(SAMPLE)])
            .part("middle", &data[middle..data.len().min(middle + SAMPLE)]);
    }
    builder
}

/// Adds how the model is run: this program's version and instruction set (results differ in their last bits), the
/// cache's element type, and the angles of the ropes as they came out (they depend on the file and on the context asked
/// for). Requests add their tenant, adapters their content and generation.
pub(super) fn of_model(file: NamespaceBuilder, model: &Model, isa: Isa, kv: KvType) -> NamespaceBuilder {
    let mut builder = file
        .part("version", env!("CARGO_PKG_VERSION").as_bytes())
        .part("isa", isa.name().as_bytes())
        .part("kv", kv.to_string().as_bytes());
    for rope in &model.ropes {
        let (mut cos, mut sin) = (vec![0.0; rope.n_rot() / 2], vec![0.0; rope.n_rot() / 2]);
        for pos in POSITIONS {
            rope.angles(pos, &mut cos, &mut sin);
            let style = format!("{:?} at {pos}", rope.style());
            builder = builder.part(&style, bytemuck::cast_slice(&cos)).part("sin", bytemuck::cast_slice(&sin));
        }
    }
    builder
}
