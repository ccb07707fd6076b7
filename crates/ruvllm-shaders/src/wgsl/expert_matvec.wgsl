// y[row, slot, out] = bias[e, out] + Σ w[e, out, i] x[row, slot, i], e = experts[row, slot], or e = slot.
// Grid: tiles of OUTS outputs (x), rows (y), slots (z). A binding holds n_experts experts from the first_expert on; a
// workgroup whose expert lies in another binding writes nothing.
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let first_out = OUTS * group.x;
    let row = group.y;
    let slot = group.z;
    if (first_out >= params.n_out || row >= pass_counts[params.count]) {
        return;
    }
    var chosen = slot;
    if ((params.flags & SLOT_IS_EXPERT) == 0u) {
        chosen = experts[row * params.n_slots + slot];
    }
    let expert = chosen - params.first_expert;
    if (expert >= params.n_experts) {
        return;
    }
    for (var o = 0u; o < OUTS; o++) {
        let out = expert * params.n_out + min(first_out + o, params.n_out - 1u);
        w_rows[o] = params.w_offset + out * params.row_words;
    }
    x_rows[0] = (params.x_offset + row * params.x_stride + slot * params.x_slot_stride) / 4u;
    dot_rows(lane);
    if (lane.index < OUTS && first_out + lane.index < params.n_out) {
        let out = first_out + lane.index;
        let at = params.y_offset + row * params.y_stride + slot * params.n_out + out;
        store(at, (params.first_expert + expert) * params.n_out + out, sum_of(lane.index, lane));
    }
}
