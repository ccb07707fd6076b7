// The k largest values of a row of n, largest first, the smaller index first among equals; k = 1 is the arg-max.
// ids[row, i] and values[row, i] get them. Every one is a pass over the row: k is small.
// Grid: rows (y).
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let row = group.y;
    if (row >= pass_counts[params.count]) {
        return;
    }
    let start = params.x_offset + row * params.x_stride;
    var last = Best(3.4e38, 0xffffffffu);
    for (var i = 0u; i < params.k; i++) {
        var value = -3.4e38;
        var index = 0xffffffffu;
        for (var j = lane.index; j < params.n; j += WG) {
            let candidate = x[start + j];
            // Those that come after the last one found; before the first, all do.
            let is_left = i == 0u || candidate < last.value || (candidate == last.value && j > last.index);
            if (is_left && (candidate > value || index == 0xffffffffu)) {
                value = candidate;
                index = j;
            }
        }
        last = best_of(value, index, lane);
        if (lane.index == 0u) {
            ids[row * params.k + i] = last.index;
            values[row * params.k + i] = last.value;
        }
    }
}
