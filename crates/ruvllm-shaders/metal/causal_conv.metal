// causal_conv, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 64. Buffers: params 0, x 1, taps 2, bias 3, state 4, y 5, pass_counts 16, rows 17.
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
    uint size7;
    uint size8;
};

struct Params {
    uint n;
    uint n_taps;
    uint x_offset;
    uint x_stride;
    uint y_offset;
    uint y_stride;
    uint state_offset;
    uint state_stride;
    uint count;
    uint flags;
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

float sigmoid(
    float x
) {
    float e = metal::exp(-(metal::abs(x)));
    return ((x >= 0.0) ? 1.0 : e) / (1.0 + e);
}

float silu(
    float x_1
) {
    float _e1 = sigmoid(x_1);
    return x_1 * _e1;
}

float gelu_tanh(
    float x_2
) {
    float c = metal::clamp(x_2, -12.0, 12.0);
    float _e11 = sigmoid(1.5957692 * (c + (((0.044715 * c) * c) * c)));
    return x_2 * _e11;
}

float gelu_erf(
    float x_3
) {
    float q = -0.020628711;
    float z = metal::min(metal::abs(x_3), 15.0);
    float t_1 = 1.0 / (1.0 + (0.3 * z));
    float _e12 = q;
    q = (_e12 * t_1) + 0.11246506;
    float _e16 = q;
    q = (_e16 * t_1) - 0.2282854;
    float _e20 = q;
    q = (_e20 * t_1) + 0.19188409;
    float _e24 = q;
    q = (_e24 * t_1) - 0.07950979;
    float _e28 = q;
    q = (_e28 * t_1) + 0.09620524;
    float _e32 = q;
    q = (_e32 * t_1) + 0.07837212;
    float _e36 = q;
    q = (_e36 * t_1) + 0.11023937;
    float _e40 = q;
    q = (_e40 * t_1) + 0.11957132;
    float _e44 = q;
    q = (_e44 * t_1) + 0.11968672;
    float _e56 = q;
    return metal::max(x_3, 0.0) - (((z * metal::exp((-0.5 * z) * z)) * t_1) * _e56);
}

float relu(
    float x_4
) {
    return metal::max(x_4, 0.0);
}

float relu_sqr(
    float x_5
) {
    float _e1 = relu(x_5);
    float _e2 = relu(x_5);
    return _e1 * _e2;
}

struct causal_convInput {
};
[[max_total_threads_per_threadgroup(64)]] kernel void causal_conv(
  uint index [[thread_index_in_threadgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_2 const& x_6 [[buffer(1)]]
, device type_2 const& taps [[buffer(2)]]
, device type_2 const& bias [[buffer(3)]]
, device type_2& state [[buffer(4)]]
, device type_2& y [[buffer(5)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, device type_4 const& rows [[buffer(17)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index };
    bool local = {};
    uint step = 0u;
    float sum = {};
    uint t = {};
    float value = {};
    uint past = 0u;
    float value_1 = {};
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
    uint _e32 = rows[first].n_keys;
    bool is_new = _e32 == 1u;
    uint _e37 = params.n_taps;
    uint n_past = _e37 - 1u;
    uint _e42 = params.state_offset;
    uint _e46 = rows[first].state;
    uint _e49 = params.state_stride;
    uint kept = (_e42 + (_e46 * _e49)) + i;
    uint _e55 = params.x_offset;
    uint _e58 = params.x_stride;
    uint input = (_e55 + (first * _e58)) + i;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e157 = step;
            step = _e157 + 1u;
        }
        loop_init = false;
        uint _e64 = step;
        if ((first + _e64) < n_rows) {
        } else {
            break;
        }
        {
            uint _e68 = step;
            uint _e72 = rows[first + _e68].first;
            if (_e72 != first) {
                break;
            }
            sum = 0.0;
            t = 0u;
            bool loop_init_1 = true;
            while(true) {
                if (!loop_init_1) {
                    uint _e127 = t;
                    t = _e127 + 1u;
                }
                loop_init_1 = false;
                uint _e78 = t;
                uint _e81 = params.n_taps;
                if (_e78 < _e81) {
                } else {
                    break;
                }
                {
                    value = 0.0;
                    uint _e85 = step;
                    uint _e86 = t;
                    if ((_e85 + _e86) >= n_past) {
                        uint _e90 = step;
                        uint _e91 = t;
                        uint _e96 = params.x_stride;
                        float _e100 = x_6[input + (((_e90 + _e91) - n_past) * _e96)];
                        value = _e100;
                    } else {
                        if (!(is_new)) {
                            uint _e103 = step;
                            uint _e104 = t;
                            uint _e108 = params.n;
                            float _e112 = state[kept + ((_e103 + _e104) * _e108)];
                            value = _e112;
                        }
                    }
                    float _e113 = sum;
                    uint _e117 = params.n_taps;
                    uint _e119 = t;
                    float _e122 = taps[(i * _e117) + _e119];
                    float _e123 = value;
                    sum = _e113 + (_e122 * _e123);
                }
            }
            uint _e131 = params.flags;
            if ((_e131 & HAS_BIAS) != 0u) {
                float _e136 = sum;
                float _e139 = bias[i];
                sum = _e136 + _e139;
            }
            uint _e144 = params.y_offset;
            uint _e145 = step;
            uint _e149 = params.y_stride;
            float _e154 = sum;
            float _e155 = silu(_e154);
            y[(_e144 + ((first + _e145) * _e149)) + i] = _e155;
        }
    }
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e203 = past;
            past = _e203 + 1u;
        }
        loop_init_2 = false;
        uint _e161 = past;
        if (_e161 < n_past) {
        } else {
            break;
        }
        {
            value_1 = 0.0;
            uint _e165 = past;
            uint _e166 = step;
            if ((_e165 + _e166) >= n_past) {
                uint _e170 = past;
                uint _e171 = step;
                uint _e176 = params.x_stride;
                float _e180 = x_6[input + (((_e170 + _e171) - n_past) * _e176)];
                value_1 = _e180;
            } else {
                if (!(is_new)) {
                    uint _e183 = past;
                    uint _e184 = step;
                    uint _e188 = params.n;
                    float _e192 = state[kept + ((_e183 + _e184) * _e188)];
                    value_1 = _e192;
                }
            }
            uint _e194 = past;
            uint _e197 = params.n;
            float _e201 = value_1;
            state[kept + (_e194 * _e197)] = _e201;
        }
    }
    return;
}
