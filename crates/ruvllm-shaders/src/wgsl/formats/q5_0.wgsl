// Q5_0: nibbles; bits; scales f16 a unit. x = d (q - 16)
struct Unit { q: vec4<u32>, bits: u32, d: f32 }

fn load_unit(row: u32, u: u32) -> Unit {
    let bits = row + 4u * params.n_units;
    return Unit(words4(row + 4u * u), w[bits + u], half_at(bits + params.n_units, u));
}

fn quad(unit: Unit, i: u32) -> vec4<f32> {
    return unit.d * (unsigned4(nibbles(unit.q, i) | fifth_bits(unit.bits, i)) - 16.0);
}
