// Sums and maxima over a workgroup, by a tree in shared memory: N_SUMS of them at once, in slots.
struct Lane {
    @builtin(local_invocation_index) index: u32,
}

var<workgroup> partials: array<f32, N_SUMS * WG>;

// Gives a lane's part of the sum in `slot`. All lanes call it.
fn put_sum(slot: u32, value: f32, lane: Lane) {
    partials[slot * WG + lane.index] = value;
}

// Gives a lane's part of the maximum in `slot`. All lanes call it.
fn put_max(slot: u32, value: f32, lane: Lane) {
    partials[slot * WG + lane.index] = value;
}

// Ends the sums of all slots. All lanes call it; any lane may then ask for a sum.
fn finish_sums(lane: Lane) {
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if (lane.index < half) {
            for (var slot = 0u; slot < N_SUMS; slot++) {
                partials[slot * WG + lane.index] += partials[slot * WG + lane.index + half];
            }
        }
        workgroupBarrier();
    }
}

// Ends the maxima of all slots.
fn finish_max(lane: Lane) {
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if (lane.index < half) {
            for (var slot = 0u; slot < N_SUMS; slot++) {
                let at = slot * WG + lane.index;
                partials[at] = max(partials[at], partials[at + half]);
            }
        }
        workgroupBarrier();
    }
}

fn sum_of(slot: u32, lane: Lane) -> f32 {
    return partials[slot * WG];
}

fn max_of(slot: u32, lane: Lane) -> f32 {
    return partials[slot * WG];
}
