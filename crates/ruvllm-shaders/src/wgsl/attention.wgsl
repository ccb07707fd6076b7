// Flash attention over pages: a workgroup computes HEADS query heads of one row that share a head of keys and values.
//
//   for each tile of WG keys:  scores (a lane has a key) -> maximum, sum, rescaling (Milakov and Gimelshein 2018)
//                              -> weighted values (a lane has words of the head)
//
// A row sees the last `window` of its first `n_keys` keys (all, if the window is 0). Scores are soft-capped, a head's sink
// takes part in the sum. `tables` has the blocks of the row's sequence from rows[].table on.
// Where SPLIT, the keys of a row are split over `n_splits` workgroups, and y gets for each head and split the sums that are
// not divided yet, their total and the maximum, which attention_merge puts together.
// Grid: heads of keys times tiles of query heads (x), rows (y), splits (z).

// The most words of values that a lane has: heads of up to HEAD_MAX values.
const V_WORDS: u32 = HEAD_MAX / WG / VALUES_PER_WORD;
const NEGATIVE: f32 = -3.0e38;

var<workgroup> queries: array<f32, HEADS * HEAD_MAX>;
var<workgroup> weights: array<f32, HEADS * WG>;

@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let row = group.y;
    let group_len = params.n_heads / params.n_kv_heads;
    let n_tiles = (group_len + HEADS - 1u) / HEADS;
    let kv_head = group.x / n_tiles;
    let first = (group.x % n_tiles) * HEADS;
    if (kv_head >= params.n_kv_heads || row >= pass_counts[params.count]) {
        return;
    }
    let n_heads = min(HEADS, group_len - first);
    let first_head = kv_head * group_len + first;
    let q_at = params.q_offset + row * params.q_stride + first_head * params.k_dim;
    for (var i = lane.index; i < n_heads * params.k_dim; i += WG) {
        queries[(i / params.k_dim) * HEAD_MAX + i % params.k_dim] = q[q_at + i] * params.scale;
    }
    workgroupBarrier();

    var most: array<f32, HEADS>;
    var total: array<f32, HEADS>;
    var sums: array<f32, HEADS * V_WORDS * VALUES_PER_WORD>;
    for (var h = 0u; h < HEADS; h++) {
        most[h] = NEGATIVE;
        if ((params.flags & HAS_SINKS) != 0u && h < n_heads && group.z == 0u) {
            most[h] = sinks[first_head + h];
            total[h] = 1.0;
        }
    }
    let end = rows[row].n_keys;
    let begin = select(0u, end - min(end, params.window), params.window > 0u);
    let table = rows[row].table;
    // Tiles begin at whole blocks, splits at whole tiles.
    let first_tile = begin - begin % BLOCK;
    let n_key_tiles = (end - first_tile + WG - 1u) / WG;
    let n_splits = select(1u, params.n_splits, SPLIT);
    let split_len = WG * ((n_key_tiles + n_splits - 1u) / n_splits);
    let split_begin = first_tile + group.z * split_len;
    let split_end = min(end, split_begin + split_len);
    for (var tile = split_begin; tile < split_end; tile += WG) {
        let key = tile + lane.index;
        let visible = key >= begin && key < split_end;
        var scores: array<f32, HEADS>;
        if (visible) {
            scores = scores_of(tables[table + key / BLOCK], kv_head, key % BLOCK);
        }
        for (var h = 0u; h < HEADS; h++) {
            scores[h] = select(NEGATIVE, scores[h], visible);
            put_max(h, scores[h], lane);
        }
        finish_max(lane);
        for (var h = 0u; h < HEADS; h++) {
            let next = max(most[h], max_of(h, lane));
            let shrink = exp(most[h] - next);
            most[h] = next;
            total[h] *= shrink;
            for (var i = 0u; i < V_WORDS * VALUES_PER_WORD; i++) {
                sums[h * V_WORDS * VALUES_PER_WORD + i] *= shrink;
            }
            scores[h] = select(0.0, exp(scores[h] - next), visible);
            weights[h * WG + lane.index] = scores[h];
        }
        workgroupBarrier();
        for (var h = 0u; h < HEADS; h++) {
            put_sum(h, scores[h], lane);
        }
        finish_sums(lane);
        for (var h = 0u; h < HEADS; h++) {
            total[h] += sum_of(h, lane);
        }
        add_values(&sums, max(tile, begin) - tile, min(split_end - tile, WG), table + tile / BLOCK, kv_head, lane.index);
        // The next tile overwrites weights and partial sums.
        workgroupBarrier();
    }
    let n_words = params.v_dim / VALUES_PER_WORD;
    for (var h = 0u; h < n_heads; h++) {
        var at = params.y_offset + row * params.y_stride + (first_head + h) * params.v_dim;
        var divisor = total[h];
        if (SPLIT) {
            at = ((row * params.n_heads + first_head + h) * params.n_splits + group.z) * (params.v_dim + 2u);
            divisor = 1.0;
            if (lane.index == 0u) {
                y[at + params.v_dim] = total[h];
                y[at + params.v_dim + 1u] = most[h];
            }
        }
        for (var i = 0u; i < V_WORDS; i++) {
            let word = i * WG + lane.index;
            if (word < n_words) {
                for (var j = 0u; j < VALUES_PER_WORD; j++) {
                    y[at + word * VALUES_PER_WORD + j] =
                        sums[(h * V_WORDS + i) * VALUES_PER_WORD + j] / divisor;
                }
            }
        }
    }
}

// tanh, whose built-in may err by 2^-11 and overflow.
fn bounded(x: f32) -> f32 {
    let e = exp(-2.0 * abs(x));
    return sign(x) * (1.0 - e) / (1.0 + e);
}

// Scores of the query heads with one key.
fn scores_of(block: u32, kv_head: u32, token: u32) -> array<f32, HEADS> {
    var scores: array<f32, HEADS>;
    for (var word = 0u; word < params.k_dim / VALUES_PER_WORD; word++) {
        let bits = k_cache[k_at(block, kv_head, token, word)];
        for (var h = 0u; h < HEADS; h++) {
            let at = h * HEAD_MAX + word * VALUES_PER_WORD;
            if (VALUES_PER_WORD == 2u) {
                scores[h] += dot(unpack2x16float(bits), vec2<f32>(queries[at], queries[at + 1u]));
            } else {
                scores[h] += bitcast<f32>(bits) * queries[at];
            }
        }
    }
    if (params.softcap > 0.0) {
        for (var h = 0u; h < HEADS; h++) {
            scores[h] = params.softcap * bounded(scores[h] / params.softcap);
        }
    }
    return scores;
}

// Adds the weighted values of keys `first..end` of a tile, whose blocks the tables have from `blocks` on.
fn add_values(
    sums: ptr<function, array<f32, HEADS * V_WORDS * VALUES_PER_WORD>>,
    first: u32,
    end: u32,
    blocks: u32,
    kv_head: u32,
    index: u32,
) {
    let n_words = params.v_dim / VALUES_PER_WORD;
    for (var t = first; t < end; t++) {
        let block = tables[blocks + t / BLOCK];
        for (var i = 0u; i < V_WORDS; i++) {
            let word = i * WG + index;
            if (word >= n_words) {
                break;
            }
            let bits = v_cache[v_at(block, kv_head, t % BLOCK, word)];
            for (var h = 0u; h < HEADS; h++) {
                let at = (h * V_WORDS + i) * VALUES_PER_WORD;
                let weight = weights[h * WG + t];
                if (VALUES_PER_WORD == 2u) {
                    let both = weight * unpack2x16float(bits);
                    (*sums)[at] += both.x;
                    (*sums)[at + 1u] += both.y;
                } else {
                    (*sums)[at] += weight * bitcast<f32>(bits);
                }
            }
        }
    }
}
