// y[row, out] = bias[out] + Σ w[out, i] x[row, i] for many rows: a workgroup computes a tile of TILE by TILE products,
// unit by unit. Both tiles of a unit lie in shared memory; a lane has 4 by 4 products in registers.
// Grid: tiles of outputs (x), tiles of rows (y).
const TILE: u32 = 64u;

var<workgroup> w_tile: array<Quad, TILE * 8u>;
var<workgroup> x_tile: array<Quad, TILE * 8u>;

@compute @workgroup_size(WG)
fn main(lane: Lane, @builtin(workgroup_id) group: vec3<u32>) {
    let first_out = TILE * group.x;
    let first_row = TILE * group.y;
    let n_rows = pass_counts[params.count];
    if (first_out >= params.n_out || first_row >= n_rows) {
        return;
    }
    // Four lanes load a row of the tiles, two quads each.
    let loaded = lane.index / 4u;
    let part = 2u * (lane.index % 4u);
    let w_row = params.w_offset + min(first_out + loaded, params.n_out - 1u) * params.row_words;
    let x_row = (params.x_offset + min(first_row + loaded, n_rows - 1u) * params.x_stride) / 4u;
    let out = 4u * (lane.index % 16u);
    let row = 4u * (lane.index / 16u);
    var sums: array<vec4<f32>, 4>;
    for (var u = 0u; u < params.n_units; u++) {
        let unit = load_unit(w_row, u);
        for (var i = part; i < part + 2u; i++) {
            let at = 8u * u + i;
            let inside = !RAGGED || at < params.n_quads;
            w_tile[8u * loaded + i] = Quad(quad(unit, i));
            x_tile[8u * loaded + i] = Quad(select(vec4<f32>(0.0), x[x_row + select(0u, at, inside)], inside));
        }
        workgroupBarrier();
        for (var i = 0u; i < 8u; i++) {
            let a = w_tile[8u * out + i];
            let b = w_tile[8u * (out + 1u) + i];
            let c = w_tile[8u * (out + 2u) + i];
            let d = w_tile[8u * (out + 3u) + i];
            for (var r = 0u; r < 4u; r++) {
                let q = x_tile[8u * (row + r) + i];
                sums[r] += vec4<f32>(f32(dot(a, q)), f32(dot(b, q)), f32(dot(c, q)), f32(dot(d, q)));
            }
        }
        workgroupBarrier();
    }
    for (var r = 0u; r < 4u; r++) {
        for (var o = 0u; o < 4u; o++) {
            let at_row = first_row + row + r;
            let at_out = first_out + out + o;
            if (at_row < n_rows && at_out < params.n_out) {
                store(params.y_offset + at_row * params.y_stride + at_out, at_out, sums[r][o]);
            }
        }
    }
}
