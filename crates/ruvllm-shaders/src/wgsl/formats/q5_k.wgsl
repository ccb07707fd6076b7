// Q5_K: nibbles; bits; heads as in Q4_K. x = d s q - dmin m
struct Unit { q: vec4<u32>, bits: u32, dm: vec2<f32> }

fn load_unit(row: u32, u: u32) -> Unit {
    let bits = row + 4u * params.n_units;
    let head = words4(bits + params.n_units + 4u * (u >> 3u));
    return Unit(words4(row + 4u * u), w[bits + u], scale_min(head, u & 7u));
}

fn quad(unit: Unit, i: u32) -> vec4<f32> {
    return unit.dm.x * unsigned4(nibbles(unit.q, i) | fifth_bits(unit.bits, i)) - unit.dm.y;
}
