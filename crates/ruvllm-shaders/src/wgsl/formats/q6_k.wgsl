// Q6_K: nibbles; pairs; two signed scales a unit; d f16 a block of 8 units. x = d s (q - 32)
struct Unit { q: vec4<u32>, pairs: vec2<u32>, d: vec2<f32> }

fn load_unit(row: u32, u: u32) -> Unit {
    let pairs = row + 4u * params.n_units;
    let scales = pairs + 2u * params.n_units;
    let both = w[scales + (u >> 1u)] >> (16u * (u & 1u));
    let d = half_at(scales + (params.n_units >> 1u), u >> 3u);
    let s = vec2<f32>(unpack4xI8(both).xy);
    return Unit(words4(row + 4u * u), vec2<u32>(w[pairs + 2u * u], w[pairs + 2u * u + 1u]), d * s);
}

fn quad(unit: Unit, i: u32) -> vec4<f32> {
    let high = (unit.pairs[i >> 2u] >> (2u * (i & 3u))) & 0x03030303u;
    let q = unsigned4(nibbles(unit.q, i) | (high << 4u)) - 32.0;
    return unit.d[i >> 2u] * q;
}
