// combine_experts, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 256. Buffers: params 0, x 1, expert_weights 2, y 3, pass_counts 16.
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
    uint n_slots;
    uint x_offset;
    uint x_stride;
    uint y_offset;
    uint y_stride;
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

struct combine_expertsInput {
};
[[max_total_threads_per_threadgroup(256)]] kernel void combine_experts(
  uint index [[thread_index_in_threadgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_2 const& x [[buffer(1)]]
, device type_2 const& expert_weights [[buffer(2)]]
, device type_2& y [[buffer(3)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index };
    bool local = {};
    float sum = 0.0;
    uint slot = 0u;
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
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e64 = slot;
            slot = _e64 + 1u;
        }
        loop_init = false;
        uint _e28 = slot;
        uint _e31 = params.n_slots;
        if (_e28 < _e31) {
        } else {
            break;
        }
        {
            uint _e36 = params.n_slots;
            uint _e38 = slot;
            float weight = expert_weights[(row * _e36) + _e38];
            float _e42 = sum;
            uint _e46 = params.x_offset;
            uint _e49 = params.x_stride;
            uint _e52 = slot;
            uint _e55 = params.n;
            float _e60 = x[((_e46 + (row * _e49)) + (_e52 * _e55)) + i];
            sum = _e42 + (weight * _e60);
        }
    }
    uint _e68 = params.y_offset;
    uint _e71 = params.y_stride;
    uint at = (_e68 + (row * _e71)) + i;
    uint _e77 = params.flags;
    if ((_e77 & ACCUMULATE) != 0u) {
        float _e82 = sum;
        float _e85 = y[at];
        sum = _e82 + _e85;
    }
    float _e89 = sum;
    y[at] = _e89;
    return;
}
