// y[row, i] = c[i] · Σ taps[i, t] inputs[position - (n_taps - 1) + t, i]: a causal convolution of every channel by itself, over
// what conv_append wrote of the row's sequence; c is the second third of a row of `x`. Before the first position there are zeros.
// Grid: channels (x), rows (y).
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let i = group.x * WG + lane.index;
    let row = group.y;
    if (i >= params.n || row >= pass_counts[params.count]) {
        return;
    }
    let n_known = rows[row].n_keys;
    let table = rows[row].table;
    let n_missing = params.n_taps - min(params.n_taps, n_known);
    var sum = 0.0;
    for (var t = n_missing; t < params.n_taps; t++) {
        let position = n_known + t - params.n_taps;
        let slot = tables[table + position / BLOCK] * BLOCK + position % BLOCK;
        sum += taps[i * params.n_taps + t] * inputs[slot * params.n + i];
    }
    let c = x[params.x_offset + row * params.x_stride + params.n + i];
    y[params.y_offset + row * params.y_stride + i] = c * sum;
}
