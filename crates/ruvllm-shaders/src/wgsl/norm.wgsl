// y = weight · (x - mean) / √(mean of squares + eps) + bias, for `n_groups` groups of `n` values a row. RMSNorm has no
// mean and no bias (CENTRED is false). Weights and biases are `n_sets` rows: group g has row g % n_sets (0: one row).
// Grid: groups (x), rows (y).
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let row = group.y;
    if (row >= pass_counts[params.count]) {
        return;
    }
    let start = params.x_offset + row * params.x_stride + group.x * params.n;
    let to = params.y_offset + row * params.y_stride + group.x * params.n;
    var mean = 0.0;
    if (CENTRED) {
        var sum = 0.0;
        for (var i = lane.index; i < params.n; i += WG) {
            sum += x[start + i];
        }
        put_sum(0u, sum, lane);
        finish_sums(lane);
        mean = sum_of(0u, lane) / f32(params.n);
        workgroupBarrier();
    }
    var squares = 0.0;
    for (var i = lane.index; i < params.n; i += WG) {
        let value = x[start + i] - mean;
        squares += value * value;
    }
    put_sum(0u, squares, lane);
    finish_sums(lane);
    let first = (group.x % max(params.n_sets, 1u)) * params.n;
    let scale = inverseSqrt(sum_of(0u, lane) / f32(params.n) + params.eps);
    for (var i = lane.index; i < params.n; i += WG) {
        var value = (x[start + i] - mean) * scale;
        if ((params.flags & HAS_WEIGHT) != 0u) {
            value *= weight[first + i];
        }
        if ((params.flags & HAS_BIAS) != 0u) {
            value += bias[first + i];
        }
        y[to + i] = value;
    }
}
