// Writes key and value of each row into its slot of the cache: block slot / BLOCK, token slot % BLOCK. A lane writes a
// word of the keys, or of the values.
// Grid: words of a row's keys, then of its values (x), rows (y).
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let row = group.y;
    let n_keys = params.n_kv_heads * params.k_dim / VALUES_PER_WORD;
    let n_values = params.n_kv_heads * params.v_dim / VALUES_PER_WORD;
    let at = group.x * WG + lane.index;
    if (at >= n_keys + n_values || row >= pass_counts[params.count]) {
        return;
    }
    let block = rows[row].slot / BLOCK;
    let token = rows[row].slot % BLOCK;
    if (at < n_keys) {
        let n_words = params.k_dim / VALUES_PER_WORD;
        let start = params.k_offset + row * params.k_stride + at * VALUES_PER_WORD;
        let word = pack_kv(k[start], k[start + VALUES_PER_WORD - 1u]);
        k_cache[k_at(block, at / n_words, token, at % n_words)] = word;
    } else {
        let n_words = params.v_dim / VALUES_PER_WORD;
        let i = at - n_keys;
        let start = params.v_offset + row * params.v_stride + i * VALUES_PER_WORD;
        let word = pack_kv(v[start], v[start + VALUES_PER_WORD - 1u]);
        v_cache[v_at(block, i / n_words, token, i % n_words)] = word;
    }
}
