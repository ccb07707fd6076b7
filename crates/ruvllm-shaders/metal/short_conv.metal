// short_conv, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 256. Buffers: params 0, x 1, inputs 2, taps 3, y 4, pass_counts 16, rows 17, tables 18.
// language: metal2.3
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size1;
    uint size2;
    uint size3;
    uint size4;
    uint size6;
    uint size7;
};

struct Params {
    uint n;
    uint n_taps;
    uint x_offset;
    uint x_stride;
    uint y_offset;
    uint y_stride;
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
constant uint BLOCK = 16u;
uint naga_div(uint lhs, uint rhs) {
    return lhs / metal::select(rhs, 1u, rhs == 0u);
}

uint naga_mod(uint lhs, uint rhs) {
    return lhs % metal::select(rhs, 1u, rhs == 0u);
}


struct short_convInput {
};
[[max_total_threads_per_threadgroup(256)]] kernel void short_conv(
  uint index [[thread_index_in_threadgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_2 const& x [[buffer(1)]]
, device type_2 const& inputs [[buffer(2)]]
, device type_2 const& taps [[buffer(3)]]
, device type_2& y [[buffer(4)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, device type_4 const& rows [[buffer(17)]]
, device type_5 const& tables [[buffer(18)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index };
    bool local = {};
    float sum = 0.0;
    uint t = {};
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
    uint n_known = rows[row].n_keys;
    uint table = rows[row].table;
    uint _e34 = params.n_taps;
    uint _e37 = params.n_taps;
    uint n_missing = _e34 - metal::min(_e37, n_known);
    t = n_missing;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e86 = t;
            t = _e86 + 1u;
        }
        loop_init = false;
        uint _e43 = t;
        uint _e46 = params.n_taps;
        if (_e43 < _e46) {
        } else {
            break;
        }
        {
            uint _e48 = t;
            uint _e52 = params.n_taps;
            uint position = (n_known + _e48) - _e52;
            uint _e59 = tables[table + naga_div(position, BLOCK)];
            uint slot = (_e59 * BLOCK) + naga_mod(position, BLOCK);
            float _e65 = sum;
            uint _e69 = params.n_taps;
            uint _e71 = t;
            float _e74 = taps[(i * _e69) + _e71];
            uint _e78 = params.n;
            float _e82 = inputs[(slot * _e78) + i];
            sum = _e65 + (_e74 * _e82);
        }
    }
    uint _e91 = params.x_offset;
    uint _e94 = params.x_stride;
    uint _e99 = params.n;
    float c = x[((_e91 + (row * _e94)) + _e99) + i];
    uint _e107 = params.y_offset;
    uint _e110 = params.y_stride;
    float _e115 = sum;
    y[(_e107 + (row * _e110)) + i] = c * _e115;
    return;
}
