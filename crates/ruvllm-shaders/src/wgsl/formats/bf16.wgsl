// BF16: upper halves of floats.
struct Unit { at: u32 }

fn load_unit(row: u32, u: u32) -> Unit {
    return Unit(row + 16u * u);
}

fn quad(unit: Unit, i: u32) -> vec4<f32> {
    let at = unit.at + 2u * i;
    let a = w[at];
    let b = w[at + 1u];
    return bitcast<vec4<f32>>(vec4<u32>(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
}
