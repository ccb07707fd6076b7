// Second stage of the search for the k largest values of a row: of those that the parts gave. pairs[row, i] gets an id and its
// value as it is in the row; NONE and -infinity where the row has fewer than k numbers.
// Grid: rows (y).
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let row = group.y;
    if (row >= pass_counts[params.count]) {
        return;
    }
    let k = min(pass_counts[params.k_count], K_MAX);
    let start = params.x_offset + row * params.x_stride;
    let n_found = params.n_parts * k;
    let first = row * n_found;
    // The best so far stay in front, others come behind them.
    var n_kept = 0u;
    var next = 0u;
    while (next < n_found) {
        for (var i = n_kept + lane.index; i < TILE; i += WG) {
            let at = next + i - n_kept;
            var id = NONE;
            if (at < n_found) {
                id = part_ids[first + at];
            }
            if (id < params.n) {
                put_in_tile(i, id, x[start + id]);
            } else {
                put_none_in_tile(i);
            }
        }
        sort_tile(lane.index);
        next += TILE - n_kept;
        n_kept = k;
    }
    for (var i = lane.index; i < k; i += WG) {
        let id = tile_ids[i];
        var bits = 0xff800000u;
        if (id < params.n) {
            bits = x[start + id];
        }
        pairs[2u * (row * k + i)] = id;
        pairs[2u * (row * k + i) + 1u] = bits;
    }
}
