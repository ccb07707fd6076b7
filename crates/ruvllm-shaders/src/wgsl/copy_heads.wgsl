// y[row, head, i] = x[row, head, i] for `n` values of each of `n_heads` heads.
// Grid: values of all heads (x), rows (y).
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let at = group.x * WG + lane.index;
    let row = group.y;
    if (at >= params.n * params.n_heads || row >= pass_counts[params.count]) {
        return;
    }
    let head = at / params.n;
    let i = at % params.n;
    y[params.y_offset + row * params.y_stride + head * params.y_head_stride + i] =
        x[params.x_offset + row * params.x_stride + head * params.x_head_stride + i];
}
