// Puts the splits of attention together: y = Σ e^(most - M) sums / Σ e^(most - M) total, M the largest of the maxima.
// Grid: heads (x), rows (y).
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let row = group.y;
    if (group.x >= params.n_heads || row >= pass_counts[params.count]) {
        return;
    }
    let first = (row * params.n_heads + group.x) * params.n_splits * (params.v_dim + 2u);
    var most = -3.0e38;
    for (var split = 0u; split < params.n_splits; split++) {
        most = max(most, splits[first + split * (params.v_dim + 2u) + params.v_dim + 1u]);
    }
    for (var i = lane.index; i < params.v_dim; i += WG) {
        var sum = 0.0;
        var total = 0.0;
        for (var split = 0u; split < params.n_splits; split++) {
            let at = first + split * (params.v_dim + 2u);
            let shrink = exp(splits[at + params.v_dim + 1u] - most);
            sum += shrink * splits[at + i];
            total += shrink * splits[at + params.v_dim];
        }
        y[params.y_offset + row * params.y_stride + group.x * params.v_dim + i] = sum / total;
    }
}
