// Chooses n_slots of n experts for each row, and their weights.
//   GATING 0: softmax over all, then the best;  1: the best, then softmax over them;  2: sigmoid of each, then the best.
// `choice_bias` is added for choosing only. With n_groups > 1 only experts of the n_groups_used groups are chosen whose
// two best scores have the largest sums.
// Grid: rows (y).
const N_EXPERTS_MAX: u32 = 1024u;
const N_SLOTS_MAX: u32 = 32u;
const N_GROUPS_MAX: u32 = 64u;
const NONE: f32 = -3.0e38;

var<workgroup> scores: array<f32, N_EXPERTS_MAX>;
var<workgroup> choices: array<f32, N_EXPERTS_MAX>;
var<workgroup> groups: array<f32, N_GROUPS_MAX>;

@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let row = group.y;
    if (row >= pass_counts[params.count]) {
        return;
    }
    score(params.x_offset + row * params.x_stride, lane);
    if (params.n_groups > 1u) {
        keep_best_groups(lane);
    }
    var chosen: array<u32, N_SLOTS_MAX>;
    var weights: array<f32, N_SLOTS_MAX>;
    var sum = 0.0;
    var most = 0.0;
    for (var slot = 0u; slot < params.n_slots; slot++) {
        var value = NONE;
        var index = 0xffffffffu;
        for (var e = lane.index; e < params.n; e += WG) {
            if (choices[e] > value) {
                value = choices[e];
                index = e;
            }
        }
        let best = best_of(value, index, lane);
        let expert = min(best.index, params.n - 1u);
        chosen[slot] = expert;
        weights[slot] = scores[expert];
        if (params.gating == 1u) {
            most = select(most, weights[slot], slot == 0u);
            weights[slot] = exp(weights[slot] - most);
        }
        sum += weights[slot];
        if (lane.index == 0u) {
            choices[expert] = NONE;
        }
        workgroupBarrier();
    }
    let is_normal = params.gating == 1u || (params.flags & NORMALIZE) != 0u;
    let scale = params.scale / select(1.0, max(sum, 1.0e-20), is_normal);
    if (lane.index == 0u) {
        for (var slot = 0u; slot < params.n_slots; slot++) {
            experts[row * params.n_slots + slot] = chosen[slot];
            expert_weights[row * params.n_slots + slot] = weights[slot] * scale;
        }
    }
}

// Fills scores, which become weights, and choices, which decide.
fn score(start: u32, lane: Lane) {
    var most = NONE;
    for (var e = lane.index; e < params.n; e += WG) {
        most = max(most, x[start + e]);
    }
    put_max(0u, most, lane);
    finish_max(lane);
    most = max_of(0u, lane);
    workgroupBarrier();
    var sum = 0.0;
    for (var e = lane.index; e < params.n; e += WG) {
        sum += exp(x[start + e] - most);
    }
    put_sum(0u, sum, lane);
    finish_sums(lane);
    sum = sum_of(0u, lane);
    workgroupBarrier();
    for (var e = lane.index; e < params.n; e += WG) {
        var value = x[start + e];
        if (params.gating == 0u) {
            value = exp(value - most) / sum;
        } else if (params.gating == 2u) {
            value = sigmoid(value);
        }
        scores[e] = value;
        if ((params.flags & HAS_BIAS) != 0u) {
            value += choice_bias[e];
        }
        choices[e] = value;
    }
    workgroupBarrier();
}

// Takes the experts of all groups but the best out of the choice.
fn keep_best_groups(lane: Lane) {
    let group_len = params.n / params.n_groups;
    for (var g = lane.index; g < params.n_groups; g += WG) {
        var first = NONE;
        var second = NONE;
        for (var e = g * group_len; e < (g + 1u) * group_len; e++) {
            second = max(second, min(first, choices[e]));
            first = max(first, choices[e]);
        }
        groups[g] = first + select(second, 0.0, group_len < 2u);
    }
    workgroupBarrier();
    for (var e = lane.index; e < params.n; e += WG) {
        let g = e / group_len;
        var n_better = 0u;
        for (var other = 0u; other < params.n_groups; other++) {
            let is_better = groups[other] > groups[g] || (groups[other] == groups[g] && other < g);
            n_better += select(0u, 1u, is_better);
        }
        if (n_better >= params.n_groups_used) {
            choices[e] = NONE;
        }
    }
    workgroupBarrier();
}
