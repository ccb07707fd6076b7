// y[row] = scale · table[token of the row]: a lane writes four values. A binding holds n_out tokens from first_token
// on; a row whose token lies in another one is left as it is.
// Grid: quads of a row (x), rows (y).
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let at = group.x * WG + lane.index;
    let row = group.y;
    let token = rows[row].token - params.first_token;
    if (at >= params.n_quads || row >= pass_counts[params.count] || token >= params.n_out) {
        return;
    }
    let unit = load_unit(params.w_offset + token * params.row_words, at / 8u);
    let values = params.scale * quad(unit, at % 8u);
    let to = params.y_offset + row * params.y_stride + 4u * at;
    for (var i = 0u; i < 4u; i++) {
        y[to + i] = values[i];
    }
}
