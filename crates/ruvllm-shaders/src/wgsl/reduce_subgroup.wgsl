// Sums and maxima over a workgroup, by subgroups: N_SUMS of them at once, in slots.
struct Lane {
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) n_subgroups: u32,
    @builtin(subgroup_invocation_id) place: u32,
}

// A subgroup has at least four lanes.
const N_PARTIALS: u32 = WG / 4u;

var<workgroup> partials: array<f32, N_SUMS * N_PARTIALS>;

// Gives a lane's part of the sum in `slot`. All lanes call it.
fn put_sum(slot: u32, value: f32, lane: Lane) {
    let sum = subgroupAdd(value);
    if (lane.place == 0u) {
        partials[slot * N_PARTIALS + lane.subgroup] = sum;
    }
}

// Gives a lane's part of the maximum in `slot`. All lanes call it.
fn put_max(slot: u32, value: f32, lane: Lane) {
    let most = subgroupMax(value);
    if (lane.place == 0u) {
        partials[slot * N_PARTIALS + lane.subgroup] = most;
    }
}

// Ends the sums of all slots. All lanes call it; any lane may then ask for a sum.
fn finish_sums(lane: Lane) {
    workgroupBarrier();
}

// Ends the maxima of all slots.
fn finish_max(lane: Lane) {
    workgroupBarrier();
}

fn sum_of(slot: u32, lane: Lane) -> f32 {
    var sum = 0.0;
    for (var i = 0u; i < lane.n_subgroups; i++) {
        sum += partials[slot * N_PARTIALS + i];
    }
    return sum;
}

fn max_of(slot: u32, lane: Lane) -> f32 {
    var most = partials[slot * N_PARTIALS];
    for (var i = 1u; i < lane.n_subgroups; i++) {
        most = max(most, partials[slot * N_PARTIALS + i]);
    }
    return most;
}
