// y = activation(a), or activation(a) · b where GATED; CLAMPED is the gate of gpt-oss: a · σ(alpha a) · (b + 1), a at most `limit`, b
// within ±limit.
// Grid: values (x), rows (y), slots (z).
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let i = group.x * WG + lane.index;
    let row = group.y;
    if (i >= params.n || row >= pass_counts[params.count]) {
        return;
    }
    let slot = group.z;
    let gate = a[params.a_offset + row * params.a_stride + slot * params.slot_stride + i];
    var value: f32;
    if (CLAMPED) {
        let up = b[params.b_offset + row * params.b_stride + slot * params.slot_stride + i];
        let limited = min(gate, params.limit);
        value = limited * sigmoid(params.alpha * limited) * (clamp(up, -params.limit, params.limit) + 1.0);
    } else {
        value = activation(gate);
        if (GATED) {
            value *= b[params.b_offset + row * params.b_stride + slot * params.slot_stride + i];
        }
    }
    y[params.y_offset + row * params.y_stride + slot * params.slot_stride + i] = value;
}
