// Q4_0: nibbles; scales f16 a unit. x = d (q - 8)
struct Unit { q: vec4<u32>, d: f32 }

fn load_unit(row: u32, u: u32) -> Unit {
    return Unit(words4(row + 4u * u), half_at(row + 4u * params.n_units, u));
}

fn quad(unit: Unit, i: u32) -> vec4<f32> {
    return unit.d * (unsigned4(nibbles(unit.q, i)) - 8.0);
}
