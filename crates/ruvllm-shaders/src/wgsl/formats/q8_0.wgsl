// Q8_0: bytes; scales f16 a unit. x = d q
struct Unit { at: u32, d: f32 }

fn load_unit(row: u32, u: u32) -> Unit {
    return Unit(row + 8u * u, half_at(row + 8u * params.n_units, u));
}

fn quad(unit: Unit, i: u32) -> vec4<f32> {
    return unit.d * vec4<f32>(unpack4xI8(w[unit.at + i]));
}
