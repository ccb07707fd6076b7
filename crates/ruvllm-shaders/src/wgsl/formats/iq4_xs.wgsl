// IQ4_XS: nibbles; heads of 2 words a block of 8 units (d, high bits of the scales, low nibbles). x = d (s - 32) table[q]
struct Unit { q: vec4<u32>, d: f32 }

fn load_unit(row: u32, u: u32) -> Unit {
    let head = row + 4u * params.n_units + 2u * (u >> 3u);
    let j = u & 7u;
    let low = (w[head + 1u] >> (4u * j)) & 15u;
    let high = (w[head] >> (16u + 2u * j)) & 3u;
    let s = f32(low | (high << 4u)) - 32.0;
    return Unit(words4(row + 4u * u), unpack2x16float(w[head]).x * s);
}

fn quad(unit: Unit, i: u32) -> vec4<f32> {
    return unit.d * iq4_values(nibbles(unit.q, i));
}
