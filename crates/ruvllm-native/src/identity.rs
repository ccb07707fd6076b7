//! What a sequence's keys and values depend on beside its tokens.

use ruvllm_kernels::Isa;
use ruvllm_kvcache::{KvPolicy, NamespaceBuilder};

use crate::model::Model;

/// Positions at which the angles of a rope are taken; settings that differ differ at one of them.
const POSITIONS: [u32; 3] = [1, 1_000, 100_000];

/// Adds how the model is run: this program's version, sources and instruction set (results differ in their last bits), the
/// cache's policy, and the angles of the ropes as they came out (they depend on the file and on the context asked
/// for). Requests add their tenant, adapters their content and generation.
pub(super) fn of_model(file: NamespaceBuilder, model: &Model, isa: Isa, kv: KvPolicy) -> NamespaceBuilder {
    let mut builder = file
        .part("numerics", &crate::NUMERICS_VERSION.to_le_bytes())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Compute;
    use crate::model::Loader;
    use ruvllm_backend::identity::of_file;
    use ruvllm_gguf::GgufFile;
    use ruvllm_kvcache::Namespace;
    use ruvllm_model::ModelSpec;
    use ruvllm_testkit::Golden;

    fn of_bytes(bytes: Vec<u8>, n_ctx: usize, kv: KvPolicy) -> Namespace {
        let file = GgufFile::from_bytes(bytes.into()).expect("a golden file is sound");
        let compute = Compute::new(Isa::Scalar, 1);
        let mut progress = |_| {};
        let loader = Loader::new(&file, &compute, &mut progress);
        let spec = ModelSpec::read(&file, Some(n_ctx)).expect("a golden file is a model");
        let model = Model::make(spec, &loader).expect("a golden file loads");
        of_model(of_file(&file, None).expect("it is in memory"), &model, compute.isa, kv).finish()
    }

    fn bytes_of(name: &str, dtype: &str) -> Vec<u8> {
        std::fs::read(Golden::load(name).model(dtype)).expect("a golden file can be read")
    }

    #[test]
    fn whatever_changes_keys_and_values_changes_the_namespace() {
        let bytes = bytes_of("phi3-a", "f32");
        let base = of_bytes(bytes.clone(), 64, KvPolicy::F16);
        assert_eq!(of_bytes(bytes.clone(), 64, KvPolicy::F16), base, "the same file and settings");
        let mut all = vec![base];
        let policies = [KvPolicy::F32, KvPolicy::TIERED, KvPolicy::Tiered { hot: 256, warm: 513 }, KvPolicy::Auto];
        all.extend(policies.map(|kv| of_bytes(bytes.clone(), 64, kv)));
        // One bit of a weight, and one of a hyper-parameter.
        let file = GgufFile::from_bytes(bytes.clone().into()).expect("a golden file is sound");
        let tensor = file.tensor("blk.1.attn_output.weight").expect("every layer has one");
        let weights = file.data(tensor);
        let at = bytes.windows(64).position(|window| window == &weights[..64]).expect("tensor bytes lie in the file");
        let mut tuned = bytes.clone();
        tuned[at] ^= 1;
        all.push(of_bytes(tuned, 64, KvPolicy::F16));
        let key = b"attention.layer_norm_rms_epsilon";
        let at = bytes.windows(key.len()).position(|window| window == key).expect("the file has the key");
        let mut other = bytes.clone();
        other[at + key.len() + 4] ^= 1;
        all.push(of_bytes(other, 64, KvPolicy::F16));
        all.push(of_bytes(bytes_of("llama-a", "f32"), 64, KvPolicy::F16));
        all.push(of_bytes(bytes_of("llama-c", "f32"), 64, KvPolicy::F16));
        assert!(all.iter().enumerate().all(|(i, a)| all[..i].iter().all(|b| a != b)), "{all:?}");
    }
}
