// copy_heads, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 256. Buffers: params 0, x 1, y 2, pass_counts 16.
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
    uint n;
    uint n_heads;
    uint x_offset;
    uint x_stride;
    uint x_head_stride;
    uint y_offset;
    uint y_stride;
    uint y_head_stride;
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
uint naga_div(uint lhs, uint rhs) {
    return lhs / metal::select(rhs, 1u, rhs == 0u);
}

uint naga_mod(uint lhs, uint rhs) {
    return lhs % metal::select(rhs, 1u, rhs == 0u);
}


struct copy_headsInput {
};
[[max_total_threads_per_threadgroup(256)]] kernel void copy_heads(
  uint index [[thread_index_in_threadgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_2 const& x [[buffer(1)]]
, device type_2& y [[buffer(2)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index };
    bool local = {};
    uint at = (group.x * WG) + lane.index;
    uint row = group.y;
    uint _e10 = params.n;
    uint _e13 = params.n_heads;
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
    uint _e30 = params.n;
    uint head = naga_div(at, _e30);
    uint _e34 = params.n;
    uint i = naga_mod(at, _e34);
    uint _e39 = params.y_offset;
    uint _e42 = params.y_stride;
    uint _e47 = params.y_head_stride;
    uint _e55 = params.x_offset;
    uint _e58 = params.x_stride;
    uint _e63 = params.x_head_stride;
    float _e68 = x[((_e55 + (row * _e58)) + (head * _e63)) + i];
    y[((_e39 + (row * _e42)) + (head * _e47)) + i] = _e68;
    return;
}
