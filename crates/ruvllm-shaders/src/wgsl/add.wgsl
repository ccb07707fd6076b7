// y += scale · x: a residual, or with `x_stride` 0 a bias. With HAS_GATE x is multiplied with the sigmoid of `gate[row]`.
// Grid: values (x), rows (y).
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let i = group.x * WG + lane.index;
    let row = group.y;
    if (i >= params.n || row >= pass_counts[params.count]) {
        return;
    }
    var scale = params.scale;
    if ((params.flags & HAS_GATE) != 0u) {
        scale *= sigmoid(gate[row]);
    }
    y[params.y_offset + row * params.y_stride + i] += scale * x[params.x_offset + row * params.x_stride + i];
}
