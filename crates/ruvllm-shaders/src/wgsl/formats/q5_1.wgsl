// Q5_1: nibbles; bits; scale and minimum, two f16, a unit. x = d q + m
struct Unit { q: vec4<u32>, bits: u32, dm: vec2<f32> }

fn load_unit(row: u32, u: u32) -> Unit {
    let bits = row + 4u * params.n_units;
    return Unit(words4(row + 4u * u), w[bits + u], unpack2x16float(w[bits + params.n_units + u]));
}

fn quad(unit: Unit, i: u32) -> vec4<f32> {
    return unit.dm.x * unsigned4(nibbles(unit.q, i) | fifth_bits(unit.bits, i)) + unit.dm.y;
}
