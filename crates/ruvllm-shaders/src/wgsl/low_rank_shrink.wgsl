// t[row, slot, i] = strength · multiplier[r] · Σ a[r, k] x[row, slot, k]: i counts the ranks r of all adapters of the row in order.
// Grid: room for ranks (x), rows (y), slots (z).
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let row = group.y;
    let slot = group.z;
    if (row >= pass_counts[params.count]) {
        return;
    }
    let layer = layer_of(row, slot);
    var place = Place(0u, 0u, 0u);
    var strength = 0.0;
    var rank = group.x;
    for (var m = 0u; m < ADAPTERS; m++) {
        let member = members[row * ADAPTERS + m];
        if (member.x == NO_ADAPTER) {
            place.rank = 0u;
            break;
        }
        place = place_of(member.x, layer);
        strength = bitcast<f32>(member.y);
        if (rank < place.rank) {
            break;
        }
        rank -= place.rank;
        place.rank = 0u;
    }
    if (rank >= place.rank) {
        return;
    }
    let multiplier = bitcast<f32>(bank[place.at + rank]);
    let a = place.at + place.rank + rank * row_words(params.n_in, place.flags);
    let start = params.x_offset + row * params.x_stride + slot * params.x_slot_stride;
    var sum = 0.0;
    for (var i = lane.index; i < params.n_in / 2u; i += WG) {
        var pair: vec2<f32>;
        if ((place.flags & FACTOR_F32) != 0u) {
            pair = vec2<f32>(bitcast<f32>(bank[a + 2u * i]), bitcast<f32>(bank[a + 2u * i + 1u]));
        } else {
            pair = unpack2x16float(bank[a + i]);
        }
        sum += dot(pair, vec2<f32>(x[start + 2u * i], x[start + 2u * i + 1u]));
    }
    put_sum(0u, sum, lane);
    finish_sums(lane);
    if (lane.index == 0u) {
        t[(row * params.n_slots + slot) * params.t_len + group.x] = sum_of(0u, lane) * multiplier * strength;
    }
}
