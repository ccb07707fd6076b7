// F16: halves.
struct Unit { at: u32 }

fn load_unit(row: u32, u: u32) -> Unit {
    return Unit(row + 16u * u);
}

fn quad(unit: Unit, i: u32) -> vec4<f32> {
    let at = unit.at + 2u * i;
    return vec4<f32>(unpack2x16float(w[at]), unpack2x16float(w[at + 1u]));
}
