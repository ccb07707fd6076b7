// The KV cache in f32: a word has one value.
const VALUES_PER_WORD: u32 = 1u;

fn pack_kv(a: f32, b: f32) -> u32 {
    return bitcast<u32>(a);
}
