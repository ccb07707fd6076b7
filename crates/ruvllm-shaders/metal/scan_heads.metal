// scan_heads, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 64. Buffers: params 0, x 1, dt 2, bc 3, weights 4, state 5, y 6, pass_counts 16, rows 17.
// language: metal2.3
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size1;
    uint size2;
    uint size3;
    uint size4;
    uint size5;
    uint size6;
    uint size8;
    uint size9;
};

struct Params {
    uint n;
    uint n_state;
    uint head_dim;
    uint group_heads;
    uint x_stride;
    uint dt_stride;
    uint b_offset;
    uint c_offset;
    uint bc_stride;
    uint y_stride;
    uint state_offset;
    uint state_stride;
    uint count;
};
struct RowRecord {
    uint token;
    uint slot;
    uint table;
    uint n_keys;
    uint source;
    uint first;
    uint state;
    uint free;
};
typedef float type_2[1];
typedef RowRecord type_4[1];
typedef uint type_5[1];
struct Lane {
    uint index;
};
constant uint HAS_BIAS = 1u;
constant uint ACCUMULATE = 2u;
constant uint HAS_WEIGHT = 4u;
constant uint HAS_GATE = 8u;
constant uint HAS_SINKS = 16u;
constant uint NORMALIZE = 32u;
constant uint HAS_EXPERTS = 64u;
constant uint SLOT_IS_EXPERT = 128u;
constant uint WG = 64u;
constant bool HEADS = true;

float softplus(
    float x
) {
    float series = 0.05882353;
    float e = metal::exp(-(metal::abs(x)));
    float s_1 = e / (2.0 + e);
    float q = s_1 * s_1;
    float _e10 = series;
    series = (_e10 * q) + 0.06666667;
    float _e14 = series;
    series = (_e14 * q) + 0.07692308;
    float _e18 = series;
    series = (_e18 * q) + 0.09090909;
    float _e22 = series;
    series = (_e22 * q) + 0.11111111;
    float _e26 = series;
    series = (_e26 * q) + 0.14285715;
    float _e30 = series;
    series = (_e30 * q) + 0.2;
    float _e34 = series;
    series = (_e34 * q) + 0.33333334;
    float _e38 = series;
    series = (_e38 * q) + 1.0;
    float _e46 = series;
    return metal::max(x, 0.0) + ((2.0 * s_1) * _e46);
}
uint naga_div(uint lhs, uint rhs) {
    return lhs / metal::select(rhs, 1u, rhs == 0u);
}


struct scan_headsInput {
};
[[max_total_threads_per_threadgroup(64)]] kernel void scan_heads(
  uint index [[thread_index_in_threadgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_2 const& x_1 [[buffer(1)]]
, device type_2 const& dt [[buffer(2)]]
, device type_2 const& bc [[buffer(3)]]
, device type_2 const& weights [[buffer(4)]]
, device type_2& state [[buffer(5)]]
, device type_2& y [[buffer(6)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, device type_4 const& rows [[buffer(17)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index };
    bool local = {};
    uint share_at = {};
    bool is_new = {};
    uint row = {};
    float dt_value = {};
    float decay = {};
    float sum = {};
    uint s = {};
    float h = {};
    uint i = (group.x * WG) + lane.index;
    uint first = group.y;
    uint _e11 = params.count;
    uint n_rows = pass_counts[_e11];
    uint _e16 = params.n;
    if (!((i >= _e16))) {
        local = first >= n_rows;
    } else {
        local = true;
    }
    bool _e23 = local;
    if (_e23) {
        return;
    }
    uint _e27 = rows[first].first;
    if (_e27 != first) {
        return;
    }
    uint _e31 = params.head_dim;
    uint head = naga_div(i, _e31);
    uint _e35 = params.n;
    uint _e38 = params.head_dim;
    uint n_heads = naga_div(_e35, _e38);
    uint _e42 = params.group_heads;
    uint _e46 = params.n_state;
    uint of_group = naga_div(head, _e42) * _e46;
    uint _e50 = params.state_offset;
    uint _e54 = rows[first].state;
    uint _e57 = params.state_stride;
    uint kept = (_e50 + (_e54 * _e57)) + i;
    uint _e63 = params.n_state;
    uint _e66 = params.n;
    share_at = (_e63 * _e66) + i;
    if (HEADS) {
        share_at = n_heads + head;
    }
    uint _e73 = share_at;
    float share = weights[_e73];
    uint _e79 = rows[first].n_keys;
    is_new = _e79 == 1u;
    row = first;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e222 = row;
            row = _e222 + 1u;
        }
        loop_init = false;
        uint _e84 = row;
        if (_e84 < n_rows) {
        } else {
            break;
        }
        {
            uint _e87 = row;
            uint _e90 = rows[_e87].first;
            if (_e90 != first) {
                break;
            }
            uint _e93 = row;
            uint _e96 = params.dt_stride;
            float _e100 = dt[(_e93 * _e96) + head];
            dt_value = _e100;
            decay = 0.0;
            if (HEADS) {
                float _e105 = dt_value;
                float _e111 = weights[(2u * n_heads) + head];
                dt_value = _e105 + _e111;
            }
            float _e113 = dt_value;
            float _e114 = softplus(_e113);
            if (HEADS) {
                float _e118 = weights[head];
                decay = metal::exp(_e114 * _e118);
            }
            uint _e122 = row;
            uint _e125 = params.x_stride;
            float input = x_1[(_e122 * _e125) + i];
            uint _e132 = params.b_offset;
            uint _e133 = row;
            uint _e136 = params.bc_stride;
            uint b_at = (_e132 + (_e133 * _e136)) + of_group;
            uint _e142 = params.c_offset;
            uint _e143 = row;
            uint _e146 = params.bc_stride;
            uint c_at = (_e142 + (_e143 * _e146)) + of_group;
            sum = 0.0;
            s = 0u;
            bool loop_init_1 = true;
            while(true) {
                if (!loop_init_1) {
                    uint _e207 = s;
                    s = _e207 + 1u;
                }
                loop_init_1 = false;
                uint _e154 = s;
                uint _e157 = params.n_state;
                if (_e154 < _e157) {
                } else {
                    break;
                }
                {
                    uint _e159 = s;
                    uint _e162 = params.n;
                    uint at = kept + (_e159 * _e162);
                    if (false) {
                        uint _e167 = s;
                        uint _e170 = params.n;
                        float _e174 = weights[(_e167 * _e170) + i];
                        decay = metal::exp(_e114 * _e174);
                    }
                    uint _e179 = s;
                    float _e182 = bc[b_at + _e179];
                    h = (_e114 * input) * _e182;
                    bool _e185 = is_new;
                    if (!(_e185)) {
                        float _e187 = h;
                        float _e190 = state[at];
                        float _e191 = decay;
                        h = _e187 + (_e190 * _e191);
                    }
                    float _e196 = h;
                    state[at] = _e196;
                    float _e197 = sum;
                    float _e198 = h;
                    uint _e200 = s;
                    float _e203 = bc[c_at + _e200];
                    sum = _e197 + (_e198 * _e203);
                }
            }
            uint _e210 = row;
            uint _e213 = params.y_stride;
            float _e217 = sum;
            y[(_e210 * _e213) + i] = _e217 + (share * input);
            is_new = false;
        }
    }
    return;
}
