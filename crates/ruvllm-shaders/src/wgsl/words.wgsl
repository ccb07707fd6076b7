// Reading of planes: see format.rs.

// Four words from `at`.
fn words4(at: u32) -> vec4<u32> {
    return vec4<u32>(w[at], w[at + 1u], w[at + 2u], w[at + 3u]);
}

// The f16 number `i` of a plane that begins at word `plane`.
fn half_at(plane: u32, i: u32) -> f32 {
    let both = unpack2x16float(w[plane + (i >> 1u)]);
    return select(both.x, both.y, (i & 1u) == 1u);
}

// Byte `i` of a plane that begins at word `plane`.
fn byte_at(plane: u32, i: u32) -> u32 {
    return (w[plane + (i >> 2u)] >> (8u * (i & 3u))) & 0xffu;
}

// Byte `i` of a word.
fn byte_of(word: u32, i: u32) -> u32 {
    return (word >> (8u * i)) & 0xffu;
}

// The nibbles of values 4i to 4i + 3 of a unit, one in each byte.
fn nibbles(q: vec4<u32>, i: u32) -> u32 {
    return (q[i & 3u] >> (4u * (i >> 2u))) & 0x0f0f0f0fu;
}

// The fifth bits of values 4i to 4i + 3 of a unit, one in each byte, in place.
fn fifth_bits(bits: u32, i: u32) -> u32 {
    let four = (bits >> (4u * i)) & 15u;
    return ((four * 0x00204081u) & 0x01010101u) << 4u;
}

fn unsigned4(bytes: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xU8(bytes));
}

// Scale and minimum of group `j` in a block whose head is `head`: 6 bits each, as Q4_K and Q5_K pack them.
fn scale_min(head: vec4<u32>, j: u32) -> vec2<f32> {
    let b = j & 3u;
    let s = byte_of(head.y, b);
    let m = byte_of(head.z, b);
    let low = byte_of(head.w, b);
    let first = vec2<u32>(s & 63u, m & 63u);
    let second = vec2<u32>((low & 15u) | ((s >> 6u) << 4u), (low >> 4u) | ((m >> 6u) << 4u));
    return vec2<f32>(select(first, second, j >= 4u)) * unpack2x16float(head.x);
}
