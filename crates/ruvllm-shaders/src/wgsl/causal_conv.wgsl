// y[row, i] = silu(bias[i] + Σ taps[i, t] inputs[step - (n_taps - 1) + t, i]): a causal convolution of every channel by itself over the
// rows of a sequence. Before its first row are the inputs that the last pass left in `state`, [tap][channel], or zeros at the
// beginning of the sequence. A lane has a channel of a sequence, and leaves the last inputs for the next pass.
// Grid: channels (x), rows (y): the workgroup of a sequence's first row computes all its rows.
@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let i = group.x * WG + lane.index;
    let first = group.y;
    let n_rows = pass_counts[params.count];
    if (i >= params.n || first >= n_rows) {
        return;
    }
    if (rows[first].first != first) {
        return;
    }
    let is_new = rows[first].n_keys == 1u;
    let n_past = params.n_taps - 1u;
    let kept = params.state_offset + rows[first].state * params.state_stride + i;
    let input = params.x_offset + first * params.x_stride + i;
    var step = 0u;
    for (; first + step < n_rows; step++) {
        if (rows[first + step].first != first) {
            break;
        }
        var sum = 0.0;
        for (var t = 0u; t < params.n_taps; t++) {
            var value = 0.0;
            if (step + t >= n_past) {
                value = x[input + (step + t - n_past) * params.x_stride];
            } else if (!is_new) {
                value = state[kept + (step + t) * params.n];
            }
            sum += taps[i * params.n_taps + t] * value;
        }
        if ((params.flags & HAS_BIAS) != 0u) {
            sum += bias[i];
        }
        y[params.y_offset + (first + step) * params.y_stride + i] = silu(sum);
    }
    for (var past = 0u; past < n_past; past++) {
        var value = 0.0;
        if (past + step >= n_past) {
            value = x[input + (past + step - n_past) * params.x_stride];
        } else if (!is_new) {
            value = state[kept + (past + step) * params.n];
        }
        state[kept + past * params.n] = value;
    }
}
