// First stage of the search for the k largest values of a row of n: those of a part of the row, largest first, the smaller id
// first among equals. part_ids[row, part, i] gets their ids, NONE where the part has fewer.
// Grid: parts (x), rows (y).
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let row = group.y;
    let part = group.x;
    if (part >= params.n_parts || row >= pass_counts[params.count]) {
        return;
    }
    let k = min(pass_counts[params.k_count], K_MAX);
    let start = params.x_offset + row * params.x_stride;
    let end = min((part + 1u) * params.part_len, params.n);
    // The best so far stay in front, others come behind them.
    var n_kept = 0u;
    var next = part * params.part_len;
    while (next < end) {
        for (var i = n_kept + lane.index; i < TILE; i += WG) {
            let id = next + i - n_kept;
            if (id < end) {
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
        part_ids[(row * params.n_parts + part) * k + i] = tile_ids[i];
    }
}
