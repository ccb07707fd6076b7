// y[row, out] = bias[out] + Σ w[out, i] x[row, i]: OUTS outputs of ROWS rows a workgroup.
// Grid: tiles of outputs (x, and z where they are over GRID_X), tiles of rows (y).
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let first_out = OUTS * (group.x + GRID_X * group.z);
    let first_row = ROWS * group.y;
    let n_rows = pass_counts[params.count];
    if (first_out >= params.n_out || first_row >= n_rows) {
        return;
    }
    // Rows past the end compute the last one again.
    for (var o = 0u; o < OUTS; o++) {
        w_rows[o] = params.w_offset + min(first_out + o, params.n_out - 1u) * params.row_words;
    }
    for (var r = 0u; r < ROWS; r++) {
        x_rows[r] = (params.x_offset + min(first_row + r, n_rows - 1u) * params.x_stride) / 4u;
    }
    dot_rows(lane);
    for (var i = lane.index; i < N_SUMS; i += WG) {
        let out = first_out + i / ROWS;
        let row = first_row + i % ROWS;
        if (out < params.n_out && row < n_rows) {
            store(params.y_offset + row * params.y_stride + out, out, sum_of(i, lane));
        }
    }
}
