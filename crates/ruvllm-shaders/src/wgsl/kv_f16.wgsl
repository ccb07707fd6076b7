// The KV cache in f16: a word has values 2i and 2i + 1 of a head.
const VALUES_PER_WORD: u32 = 2u;

fn pack_kv(a: f32, b: f32) -> u32 {
    return pack2x16float(vec2<f32>(a, b));
}
