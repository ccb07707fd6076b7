// Q4_K: nibbles; heads of 4 words a block of 8 units (d and dmin, 12 bytes of scales and minimums). x = d s q - dmin m
struct Unit { q: vec4<u32>, dm: vec2<f32> }

fn load_unit(row: u32, u: u32) -> Unit {
    let head = words4(row + 4u * params.n_units + 4u * (u >> 3u));
    return Unit(words4(row + 4u * u), scale_min(head, u & 7u));
}

fn quad(unit: Unit, i: u32) -> vec4<f32> {
    return unit.dm.x * unsigned4(nibbles(unit.q, i)) - unit.dm.y;
}
