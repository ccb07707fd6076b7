// Rotates pairs of the first `2 n_pairs` values of each head, in place. `angles` has cosine and sine of each pair for
// each row, computed by the host: angles of far positions need more than f32.
// Grid: pairs of all heads (x), rows (y).
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let at = group.x * WG + lane.index;
    let row = group.y;
    if (at >= params.n_heads * params.n_pairs || row >= pass_counts[params.count]) {
        return;
    }
    let head = at / params.n_pairs;
    let pair = at % params.n_pairs;
    let start = params.x_offset + row * params.x_stride + head * params.head_dim;
    // NeoX pairs a value with that half of the rotated part further, the normal style with its neighbour.
    let first = start + select(2u * pair, pair, NEOX);
    let second = first + select(1u, params.n_pairs, NEOX);
    let angle = angles[row * params.angle_stride + pair];
    let a = x[first];
    let b = x[second];
    x[first] = a * angle.x - b * angle.y;
    x[second] = a * angle.y + b * angle.x;
}
