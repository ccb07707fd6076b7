// gather, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 256. Buffers: params 0, x 1, y 2, pass_counts 16, rows 17.
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

struct gatherInput {
};
[[max_total_threads_per_threadgroup(256)]] kernel void gather(
  uint index [[thread_index_in_threadgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_2 const& x [[buffer(1)]]
, device type_2& y [[buffer(2)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, device type_4 const& rows [[buffer(17)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index };
    bool local = {};
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
    uint _e27 = params.y_offset;
    uint _e30 = params.y_stride;
    uint _e38 = params.x_offset;
    uint _e42 = rows[row].source;
    uint _e45 = params.x_stride;
    float _e50 = x[(_e38 + (_e42 * _e45)) + i];
    y[(_e27 + (row * _e30)) + i] = _e50;
    return;
}
