// y = softmax(scale · x) of each row of n values.
// Grid: rows (y).
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let row = group.y;
    if (row >= pass_counts[params.count]) {
        return;
    }
    let start = params.x_offset + row * params.x_stride;
    let to = params.y_offset + row * params.y_stride;
    var most = -3.0e38;
    for (var i = lane.index; i < params.n; i += WG) {
        most = max(most, params.scale * x[start + i]);
    }
    put_max(0u, most, lane);
    finish_max(lane);
    most = max_of(0u, lane);
    workgroupBarrier();
    var sum = 0.0;
    for (var i = lane.index; i < params.n; i += WG) {
        let value = exp(params.scale * x[start + i] - most);
        y[to + i] = value;
        sum += value;
    }
    put_sum(0u, sum, lane);
    finish_sums(lane);
    sum = sum_of(0u, lane);
    for (var i = lane.index; i < params.n; i += WG) {
        y[to + i] /= sum;
    }
}
