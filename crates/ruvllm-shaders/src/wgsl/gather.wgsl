// y[i] = x[source of row i]: the rows whose logits are wanted.
// Grid: values (x), rows (y).
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let i = group.x * WG + lane.index;
    let row = group.y;
    if (i >= params.n || row >= pass_counts[params.count]) {
        return;
    }
    y[params.y_offset + row * params.y_stride + i] = x[params.x_offset + rows[row].source * params.x_stride + i];
}
