// y[row, slot, j] = y[row, slot, j] · (1 + Σ strength · gain[j]) + Σ t[row, slot, i] b[r, j] + bias[j]: the sums are over the adapters
// of the row and their ranks, in order. A row without adapters gets its bias.
// Grid: outputs (x), rows (y), slots (z).
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let j = group.x * WG + lane.index;
    let row = group.y;
    let slot = group.z;
    if (j >= params.n_out || row >= pass_counts[params.count]) {
        return;
    }
    let layer = layer_of(row, slot);
    let at = params.y_offset + row * params.y_stride + slot * params.n_out + j;
    var from_rank = (row * params.n_slots + slot) * params.t_len;
    var value = y[at];
    var gain = 0.0;
    var sum = 0.0;
    var is_changed = false;
    for (var m = 0u; m < ADAPTERS; m++) {
        let member = members[row * ADAPTERS + m];
        if (member.x == NO_ADAPTER) {
            break;
        }
        let place = place_of(member.x, layer);
        if (place.rank == 0u) {
            continue;
        }
        is_changed = true;
        let b_words = row_words(params.n_out, place.flags);
        let b = place.at + place.rank * (1u + row_words(params.n_in, place.flags));
        if ((place.flags & FACTOR_GAIN) != 0u) {
            gain += bitcast<f32>(member.y) * bitcast<f32>(bank[b + place.rank * b_words + j]);
        }
        for (var r = 0u; r < place.rank; r++) {
            sum += t[from_rank + r] * factor(b + r * b_words, j, place.flags);
        }
        from_rank += place.rank;
    }
    if (is_changed) {
        value = value * (1.0 + gain) + sum;
    }
    if ((params.flags & HAS_BIAS) != 0u) {
        value += bias[(layer - params.layer) * params.n_out + j];
    }
    y[at] = value;
}
