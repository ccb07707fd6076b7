// attention_merge, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 64. Buffers: params 0, splits 1, y 2, pass_counts 16.
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
    uint v_dim;
    uint n_splits;
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
constant uint WG = 64u;

struct attention_mergeInput {
};
[[max_total_threads_per_threadgroup(64)]] kernel void attention_merge(
  uint index [[thread_index_in_threadgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_2 const& splits [[buffer(1)]]
, device type_2& y [[buffer(2)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index };
    bool local = {};
    float most = -300000000000000000000000000000000000000.0;
    uint split = 0u;
    uint i = {};
    float sum = {};
    float total = {};
    uint split_1 = {};
    uint row = group.y;
    uint _e6 = params.n_heads;
    if (!((group.x >= _e6))) {
        uint _e14 = params.count;
        uint _e16 = pass_counts[_e14];
        local = row >= _e16;
    } else {
        local = true;
    }
    bool _e19 = local;
    if (_e19) {
        return;
    }
    uint _e22 = params.n_heads;
    uint _e28 = params.n_splits;
    uint _e32 = params.v_dim;
    uint first = (((row * _e22) + group.x) * _e28) * (_e32 + 2u);
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e65 = split;
            split = _e65 + 1u;
        }
        loop_init = false;
        uint _e40 = split;
        uint _e43 = params.n_splits;
        if (_e40 < _e43) {
        } else {
            break;
        }
        {
            float _e45 = most;
            uint _e47 = split;
            uint _e50 = params.v_dim;
            uint _e57 = params.v_dim;
            float _e62 = splits[((first + (_e47 * (_e50 + 2u))) + _e57) + 1u];
            most = metal::max(_e45, _e62);
        }
    }
    i = lane.index;
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e147 = i;
            i = _e147 + WG;
        }
        loop_init_1 = false;
        uint _e69 = i;
        uint _e72 = params.v_dim;
        if (_e69 < _e72) {
        } else {
            break;
        }
        {
            sum = 0.0;
            total = 0.0;
            split_1 = 0u;
            bool loop_init_2 = true;
            while(true) {
                if (!loop_init_2) {
                    uint _e124 = split_1;
                    split_1 = _e124 + 1u;
                }
                loop_init_2 = false;
                uint _e80 = split_1;
                uint _e83 = params.n_splits;
                if (_e80 < _e83) {
                } else {
                    break;
                }
                {
                    uint _e85 = split_1;
                    uint _e88 = params.v_dim;
                    uint at = first + (_e85 * (_e88 + 2u));
                    uint _e96 = params.v_dim;
                    float _e101 = splits[(at + _e96) + 1u];
                    float _e102 = most;
                    float shrink = metal::exp(_e101 - _e102);
                    float _e105 = sum;
                    uint _e107 = i;
                    float _e110 = splits[at + _e107];
                    sum = _e105 + (shrink * _e110);
                    float _e113 = total;
                    uint _e117 = params.v_dim;
                    float _e120 = splits[at + _e117];
                    total = _e113 + (shrink * _e120);
                }
            }
            uint _e129 = params.y_offset;
            uint _e132 = params.y_stride;
            uint _e138 = params.v_dim;
            uint _e141 = i;
            float _e144 = sum;
            float _e145 = total;
            y[((_e129 + (row * _e132)) + (group.x * _e138)) + _e141] = _e144 / _e145;
        }
    }
    return;
}
