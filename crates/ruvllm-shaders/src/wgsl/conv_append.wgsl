// Writes what a short convolution reads of each row into the row's slot of the cache, [slot][channel]: b · x, of which a row of
// `x` has b in its first third and x in its last.
// Grid: channels (x), rows (y).
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let i = group.x * WG + lane.index;
    let row = group.y;
    if (i >= params.n || row >= pass_counts[params.count]) {
        return;
    }
    let at = params.x_offset + row * params.x_stride;
    inputs[rows[row].slot * params.n + i] = x[at + i] * x[at + 2u * params.n + i];
}
