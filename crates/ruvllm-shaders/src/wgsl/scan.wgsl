// The recurrence of a selective state space, for the rows of a sequence in order:
//
//   h[s] = exp(Δ · a) · h[s] + Δ · x · b[s]        y = Σ h[s] c[s] + d · x        Δ = softplus(dt)
//
// Every channel has a state h of `n_state` values, [s][channel]. Where HEADS (Mamba 2), a and Δ are a head's, and `weights` are a, d
// and an addend of dt, one each a head; else (Mamba) they are a channel's, and `weights` are a, [s][channel], then d.
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
    let head = i / params.head_dim;
    let n_heads = params.n / params.head_dim;
    let of_group = (head / params.group_heads) * params.n_state;
    let kept = params.state_offset + rows[first].state * params.state_stride + i;
    var share_at = params.n_state * params.n + i;
    if (HEADS) {
        share_at = n_heads + head;
    }
    let share = weights[share_at];
    var is_new = rows[first].n_keys == 1u;
    for (var row = first; row < n_rows; row++) {
        if (rows[row].first != first) {
            break;
        }
        var dt_value = dt[row * params.dt_stride + head];
        var decay = 0.0;
        if (HEADS) {
            dt_value += weights[2u * n_heads + head];
        }
        let delta = softplus(dt_value);
        if (HEADS) {
            decay = exp(delta * weights[head]);
        }
        let input = x[row * params.x_stride + i];
        let b_at = params.b_offset + row * params.bc_stride + of_group;
        let c_at = params.c_offset + row * params.bc_stride + of_group;
        var sum = 0.0;
        for (var s = 0u; s < params.n_state; s++) {
            let at = kept + s * params.n;
            if (!HEADS) {
                decay = exp(delta * weights[s * params.n + i]);
            }
            var h = delta * input * bc[b_at + s];
            if (!is_new) {
                h += state[at] * decay;
            }
            state[at] = h;
            sum += h * bc[c_at + s];
        }
        y[row * params.y_stride + i] = sum + share * input;
        is_new = false;
    }
}

// ln(1 + e^x). Of e = e^-|x|, which is within 0 and 1, the logarithm is 2 atanh(e / (2 + e)) by its series: the built-in logarithm may
// err by 2^-21 near 1, which is all of a short step.
fn softplus(x: f32) -> f32 {
    let e = exp(-abs(x));
    let s = e / (2.0 + e);
    let q = s * s;
    var series = 1.0 / 17.0;
    series = series * q + 1.0 / 15.0;
    series = series * q + 1.0 / 13.0;
    series = series * q + 1.0 / 11.0;
    series = series * q + 1.0 / 9.0;
    series = series * q + 1.0 / 7.0;
    series = series * q + 1.0 / 5.0;
    series = series * q + 1.0 / 3.0;
    series = series * q + 1.0;
    return max(x, 0.0) + 2.0 * s * series;
}
