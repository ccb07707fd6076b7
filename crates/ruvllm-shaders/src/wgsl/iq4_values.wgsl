// The codebook of IQ4_NL and IQ4_XS: sixteen signed bytes.
fn iq4_value(q: u32) -> i32 {
    let words = vec4<u32>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
    return i32(words[q >> 2u] << (24u - 8u * (q & 3u))) >> 24u;
}

// Its values for the four nibbles in the bytes of a word.
fn iq4_values(bytes: u32) -> vec4<f32> {
    let q = unpack4xU8(bytes);
    return vec4<f32>(vec4<i32>(iq4_value(q.x), iq4_value(q.y), iq4_value(q.z), iq4_value(q.w)));
}
