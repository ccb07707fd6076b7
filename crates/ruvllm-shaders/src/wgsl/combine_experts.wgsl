// y[row] += Σ over slots of weight[row, slot] · x[row, slot]: what the experts of a row give, in the order of the slots.
// Grid: values (x), rows (y).
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let i = group.x * WG + lane.index;
    let row = group.y;
    if (i >= params.n || row >= pass_counts[params.count]) {
        return;
    }
    var sum = 0.0;
    for (var slot = 0u; slot < params.n_slots; slot++) {
        let weight = expert_weights[row * params.n_slots + slot];
        sum += weight * x[params.x_offset + row * params.x_stride + slot * params.n + i];
    }
    let at = params.y_offset + row * params.y_stride + i;
    if ((params.flags & ACCUMULATE) != 0u) {
        sum += y[at];
    }
    y[at] = sum;
}
