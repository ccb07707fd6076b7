// Q4_1: nibbles; scale and minimum, two f16, a unit. x = d q + m
struct Unit { q: vec4<u32>, dm: vec2<f32> }

fn load_unit(row: u32, u: u32) -> Unit {
    return Unit(words4(row + 4u * u), unpack2x16float(w[row + 4u * params.n_units + u]));
}

fn quad(unit: Unit, i: u32) -> vec4<f32> {
    return unit.dm.x * unsigned4(nibbles(unit.q, i)) + unit.dm.y;
}
