// The largest of what lanes bring, with the smallest index among equals.
var<workgroup> best_index: atomic<u32>;

// Returns the largest value and its index. All lanes call it with the best of their own.
struct Best { value: f32, index: u32 }

fn best_of(value: f32, index: u32, lane: Lane) -> Best {
    if (lane.index == 0u) {
        atomicStore(&best_index, 0xffffffffu);
    }
    put_max(0u, value, lane);
    finish_max(lane);
    let most = max_of(0u, lane);
    if (value == most) {
        atomicMin(&best_index, index);
    }
    workgroupBarrier();
    let found = atomicLoad(&best_index);
    // The next call overwrites both.
    workgroupBarrier();
    return Best(most, found);
}
