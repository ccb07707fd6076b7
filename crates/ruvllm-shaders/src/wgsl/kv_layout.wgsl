// Where the KV cache has things. A block holds BLOCK tokens of all heads:
// keys [block][head][word of the head][token], so that lanes with neighbouring tokens read neighbouring words;
// values [block][head][token][word of the head], so that lanes with neighbouring words of a head do.
fn k_at(block: u32, head: u32, token: u32, word: u32) -> u32 {
    let n_words = params.k_dim / VALUES_PER_WORD;
    return ((block * params.n_kv_heads + head) * n_words + word) * BLOCK + token;
}

fn v_at(block: u32, head: u32, token: u32, word: u32) -> u32 {
    let n_words = params.v_dim / VALUES_PER_WORD;
    return ((block * params.n_kv_heads + head) * BLOCK + token) * n_words + word;
}
