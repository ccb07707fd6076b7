// MXFP4: nibbles; exponents, a byte a unit. x = 2^(e - 128) table[q]; the table has doubled values
struct Unit { q: vec4<u32>, d: f32 }

fn load_unit(row: u32, u: u32) -> Unit {
    let e = byte_at(row + 4u * params.n_units, u);
    // The two exponents that are subnormal in f32.
    let bits = select((e - 1u) << 23u, 0x00200000u << e, e < 2u);
    return Unit(words4(row + 4u * u), bitcast<f32>(bits));
}

// Doubled E2M1 values of four nibbles: 0 1 2 3 4 6 8 12, and the same with a minus.
fn fp4_values(bytes: u32) -> vec4<f32> {
    let q = unpack4xU8(bytes);
    let magnitude = (vec4<u32>(0x3210u) >> (4u * (q & vec4<u32>(3u)))) & vec4<u32>(15u);
    let upper = (vec4<u32>(0xc864u) >> (4u * (q & vec4<u32>(3u)))) & vec4<u32>(15u);
    let value = vec4<f32>(select(magnitude, upper, (q & vec4<u32>(4u)) != vec4<u32>(0u)));
    return select(value, -value, (q & vec4<u32>(8u)) != vec4<u32>(0u));
}

fn quad(unit: Unit, i: u32) -> vec4<f32> {
    return unit.d * fp4_values(nibbles(unit.q, i));
}
