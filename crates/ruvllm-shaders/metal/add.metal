// add, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 256. Buffers: params 0, x 1, gate 2, y 3, pass_counts 16.
// language: metal2.3
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size1;
    uint size2;
    uint size3;
    uint size5;
    uint size6;
};

struct Params {
    uint n;
    uint x_offset;
    uint x_stride;
    uint y_offset;
    uint y_stride;
    float scale;
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
constant uint WG = 256u;

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
    float t = 1.0 / (1.0 + (0.3 * z));
    float _e12 = q;
    q = (_e12 * t) + 0.11246506;
    float _e16 = q;
    q = (_e16 * t) - 0.2282854;
    float _e20 = q;
    q = (_e20 * t) + 0.19188409;
    float _e24 = q;
    q = (_e24 * t) - 0.07950979;
    float _e28 = q;
    q = (_e28 * t) + 0.09620524;
    float _e32 = q;
    q = (_e32 * t) + 0.07837212;
    float _e36 = q;
    q = (_e36 * t) + 0.11023937;
    float _e40 = q;
    q = (_e40 * t) + 0.11957132;
    float _e44 = q;
    q = (_e44 * t) + 0.11968672;
    float _e56 = q;
    return metal::max(x_3, 0.0) - (((z * metal::exp((-0.5 * z) * z)) * t) * _e56);
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

struct addInput {
};
[[max_total_threads_per_threadgroup(256)]] kernel void add(
  uint index [[thread_index_in_threadgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_2 const& x_6 [[buffer(1)]]
, device type_2 const& gate [[buffer(2)]]
, device type_2& y [[buffer(3)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index };
    bool local = {};
    float scale = {};
    uint i = (group.x * WG) + lane.index;
    uint row = group.y;
    uint _e10 = params.n;
    if (!((i >= _e10))) {
        uint _e18 = params.count;
        uint _e20 = pass_counts[_e18];
        local = row >= _e20;
    } else {
        local = true;
    }
    bool _e23 = local;
    if (_e23) {
        return;
    }
    float _e26 = params.scale;
    scale = _e26;
    uint _e30 = params.flags;
    if ((_e30 & HAS_GATE) != 0u) {
        float _e35 = scale;
        float _e38 = gate[row];
        float _e39 = sigmoid(_e38);
        scale = _e35 * _e39;
    }
    uint _e44 = params.y_offset;
    uint _e47 = params.y_stride;
    float _e52 = y[(_e44 + (row * _e47)) + i];
    float _e53 = scale;
    uint _e57 = params.x_offset;
    uint _e60 = params.x_stride;
    float _e65 = x_6[(_e57 + (row * _e60)) + i];
    y[(_e44 + (row * _e47)) + i] = _e52 + (_e53 * _e65);
    return;
}
