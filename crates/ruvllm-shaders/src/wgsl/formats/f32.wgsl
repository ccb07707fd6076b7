// F32: floats.
struct Unit { at: u32 }

fn load_unit(row: u32, u: u32) -> Unit {
    return Unit(row + 32u * u);
}

fn quad(unit: Unit, i: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(words4(unit.at + 4u * i));
}
