// relu_sqr, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 256. Buffers: params 0, a 1, b 2, y 3, pass_counts 16.
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
    uint a_offset;
    uint a_stride;
    uint b_offset;
    uint b_stride;
    uint y_offset;
    uint y_stride;
    uint slot_stride;
    float alpha;
    float limit;
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
constant uint WG = 256u;
constant bool GATED = false;
constant bool CLAMPED = false;

float relu(
    float x
) {
    return metal::max(x, 0.0);
}

float relu_sqr_1(
    float x_1
) {
    float _e1 = relu(x_1);
    float _e2 = relu(x_1);
    return _e1 * _e2;
}

float activation(
    float x_2
) {
    float _e1 = relu_sqr_1(x_2);
    return _e1;
}

float sigmoid(
    float x_3
) {
    float e = metal::exp(-(metal::abs(x_3)));
    return ((x_3 >= 0.0) ? 1.0 : e) / (1.0 + e);
}

float silu(
    float x_4
) {
    float _e1 = sigmoid(x_4);
    return x_4 * _e1;
}

float gelu_tanh(
    float x_5
) {
    float c = metal::clamp(x_5, -12.0, 12.0);
    float _e11 = sigmoid(1.5957692 * (c + (((0.044715 * c) * c) * c)));
    return x_5 * _e11;
}

float gelu_erf(
    float x_6
) {
    float q = -0.020628711;
    float z = metal::min(metal::abs(x_6), 15.0);
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
    return metal::max(x_6, 0.0) - (((z * metal::exp((-0.5 * z) * z)) * t) * _e56);
}

struct relu_sqrInput {
};
[[max_total_threads_per_threadgroup(256)]] kernel void relu_sqr(
  uint index [[thread_index_in_threadgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_2 const& a [[buffer(1)]]
, device type_2 const& b [[buffer(2)]]
, device type_2& y [[buffer(3)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index };
    bool local = {};
    float value = {};
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
    uint slot = group.z;
    uint _e28 = params.a_offset;
    uint _e31 = params.a_stride;
    uint _e36 = params.slot_stride;
    float gate = a[((_e28 + (row * _e31)) + (slot * _e36)) + i];
    if (CLAMPED) {
        uint _e47 = params.b_offset;
        uint _e50 = params.b_stride;
        uint _e55 = params.slot_stride;
        float up = b[((_e47 + (row * _e50)) + (slot * _e55)) + i];
        float _e63 = params.limit;
        float limited = metal::min(gate, _e63);
        float _e67 = params.alpha;
        float _e69 = sigmoid(_e67 * limited);
        float _e73 = params.limit;
        float _e77 = params.limit;
        value = (limited * _e69) * (metal::clamp(up, -(_e73), _e77) + 1.0);
    } else {
        float _e82 = activation(gate);
        value = _e82;
        if (GATED) {
            float _e84 = value;
            uint _e88 = params.b_offset;
            uint _e91 = params.b_stride;
            uint _e96 = params.slot_stride;
            float _e101 = b[((_e88 + (row * _e91)) + (slot * _e96)) + i];
            value = _e84 * _e101;
        }
    }
    uint _e106 = params.y_offset;
    uint _e109 = params.y_stride;
    uint _e114 = params.slot_stride;
    float _e119 = value;
    y[((_e106 + (row * _e109)) + (slot * _e114)) + i] = _e119;
    return;
}
