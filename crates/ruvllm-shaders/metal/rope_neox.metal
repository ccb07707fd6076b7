// rope_neox, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 256. Buffers: params 0, angles 1, x 2, pass_counts 16.
// language: metal2.3
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size1;
    uint size2;
    uint size4;
    uint size5;
};

struct Params {
    uint n_heads;
    uint head_dim;
    uint n_pairs;
    uint x_offset;
    uint x_stride;
    uint angle_stride;
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
typedef metal::float2 type_3[1];
typedef float type_4[1];
typedef RowRecord type_6[1];
typedef uint type_7[1];
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
constant bool NEOX = true;
uint naga_div(uint lhs, uint rhs) {
    return lhs / metal::select(rhs, 1u, rhs == 0u);
}

uint naga_mod(uint lhs, uint rhs) {
    return lhs % metal::select(rhs, 1u, rhs == 0u);
}


struct rope_neoxInput {
};
[[max_total_threads_per_threadgroup(256)]] kernel void rope_neox(
  uint index [[thread_index_in_threadgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_3 const& angles [[buffer(1)]]
, device type_4& x [[buffer(2)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index };
    bool local = {};
    uint at = (group.x * WG) + lane.index;
    uint row = group.y;
    uint _e10 = params.n_heads;
    uint _e13 = params.n_pairs;
    if (!((at >= (_e10 * _e13)))) {
        uint _e22 = params.count;
        uint _e24 = pass_counts[_e22];
        local = row >= _e24;
    } else {
        local = true;
    }
    bool _e27 = local;
    if (_e27) {
        return;
    }
    uint _e30 = params.n_pairs;
    uint head = naga_div(at, _e30);
    uint _e34 = params.n_pairs;
    uint pair = naga_mod(at, _e34);
    uint _e38 = params.x_offset;
    uint _e41 = params.x_stride;
    uint _e46 = params.head_dim;
    uint start = (_e38 + (row * _e41)) + (head * _e46);
    uint first = start + (NEOX ? pair : (2u * pair));
    uint _e57 = params.n_pairs;
    uint second = first + (NEOX ? _e57 : 1u);
    uint _e64 = params.angle_stride;
    metal::float2 angle = angles[(row * _e64) + pair];
    float a = x[first];
    float b = x[second];
    x[first] = (a * angle.x) - (b * angle.y);
    x[second] = (a * angle.y) + (b * angle.x);
    return;
}
