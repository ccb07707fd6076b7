// Products of OUTS rows of weights with ROWS rows of inputs, over the lanes of a workgroup.

// Words at which the rows of weights begin, and quads at which the rows of inputs do.
var<private> w_rows: array<u32, OUTS>;
var<private> x_rows: array<u32, ROWS>;

// Puts product `o * ROWS + r` into the slot of that number and ends the sums.
fn dot_rows(lane: Lane) {
    var sums: array<f32, N_SUMS>;
    for (var u = lane.index; u < params.n_units; u += WG) {
        for (var o = 0u; o < OUTS; o++) {
            let unit = load_unit(w_rows[o], u);
            for (var i = 0u; i < 8u; i++) {
                let at = 8u * u + i;
                if (RAGGED && at >= params.n_quads) {
                    break;
                }
                let weights = quad(unit, i);
                for (var r = 0u; r < ROWS; r++) {
                    sums[o * ROWS + r] += dot(weights, x[x_rows[r] + at]);
                }
            }
        }
    }
    for (var i = 0u; i < N_SUMS; i++) {
        put_sum(i, sums[i], lane);
    }
    finish_sums(lane);
}
