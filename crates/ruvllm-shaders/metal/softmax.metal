// softmax, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
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
    uint x_offset;
    uint x_stride;
    uint y_offset;
    uint y_stride;
    float scale;
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
    uint subgroup;
    uint n_subgroups;
    uint place;
};
struct type_6 {
    float inner[64];
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
constant uint N_SUMS = 1u;
constant uint N_PARTIALS = 64u;

void put_sum(
    uint slot,
    float value,
    Lane lane_1,
    threadgroup type_6& partials
) {
    float unnamed = metal::simd_sum(value);
    if (lane_1.place == 0u) {
        partials.inner[(slot * N_PARTIALS) + lane_1.subgroup] = unnamed;
        return;
    } else {
        return;
    }
}

void put_max(
    uint slot_1,
    float value_1,
    Lane lane_2,
    threadgroup type_6& partials
) {
    float unnamed_1 = metal::simd_max(value_1);
    if (lane_2.place == 0u) {
        partials.inner[(slot_1 * N_PARTIALS) + lane_2.subgroup] = unnamed_1;
        return;
    } else {
        return;
    }
}

void finish_sums(
    Lane lane_3
) {
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    return;
}

void finish_max(
    Lane lane_4
) {
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    return;
}

float sum_of(
    uint slot_2,
    Lane lane_5,
    threadgroup type_6& partials
) {
    float sum_1 = 0.0;
    uint i_3 = 0u;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e19 = i_3;
            i_3 = _e19 + 1u;
        }
        loop_init = false;
        uint _e6 = i_3;
        if (_e6 < lane_5.n_subgroups) {
        } else {
            break;
        }
        {
            float _e9 = sum_1;
            uint _e13 = i_3;
            float _e16 = partials.inner[(slot_2 * N_PARTIALS) + _e13];
            sum_1 = _e9 + _e16;
        }
    }
    float _e21 = sum_1;
    return _e21;
}

float max_of(
    uint slot_3,
    Lane lane_6,
    threadgroup type_6& partials
) {
    float most_1 = {};
    uint i_4 = 1u;
    float _e6 = partials.inner[slot_3 * N_PARTIALS];
    most_1 = _e6;
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e23 = i_4;
            i_4 = _e23 + 1u;
        }
        loop_init_1 = false;
        uint _e10 = i_4;
        if (_e10 < lane_6.n_subgroups) {
        } else {
            break;
        }
        {
            float _e13 = most_1;
            uint _e17 = i_4;
            float _e20 = partials.inner[(slot_3 * N_PARTIALS) + _e17];
            most_1 = metal::max(_e13, _e20);
        }
    }
    float _e25 = most_1;
    return _e25;
}

struct softmaxInput {
};
[[max_total_threads_per_threadgroup(256)]] kernel void softmax(
  uint index [[thread_index_in_threadgroup]]
, uint subgroup [[simdgroup_index_in_threadgroup]]
, uint n_subgroups [[simdgroups_per_threadgroup]]
, uint place [[thread_index_in_simdgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_2 const& x [[buffer(1)]]
, device type_2& y [[buffer(2)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, threadgroup type_6& partials
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index, subgroup, n_subgroups, place };
    float most = -300000000000000000000000000000000000000.0;
    uint i = {};
    float sum = 0.0;
    uint i_1 = {};
    uint i_2 = {};
    uint row = group.y;
    uint _e6 = params.count;
    uint _e8 = pass_counts[_e6];
    if (row >= _e8) {
        return;
    }
    uint _e12 = params.x_offset;
    uint _e15 = params.x_stride;
    uint start = _e12 + (row * _e15);
    uint _e20 = params.y_offset;
    uint _e23 = params.y_stride;
    uint to = _e20 + (row * _e23);
    i = lane.index;
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e46 = i;
            i = _e46 + WG;
        }
        loop_init_2 = false;
        uint _e30 = i;
        uint _e33 = params.n;
        if (_e30 < _e33) {
        } else {
            break;
        }
        {
            float _e35 = most;
            float _e38 = params.scale;
            uint _e40 = i;
            float _e43 = x[start + _e40];
            most = metal::max(_e35, _e38 * _e43);
        }
    }
    float _e50 = most;
    put_max(0u, _e50, lane, partials);
    finish_max(lane);
    float _e52 = max_of(0u, lane, partials);
    most = _e52;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    i_1 = lane.index;
    bool loop_init_3 = true;
    while(true) {
        if (!loop_init_3) {
            uint _e80 = i_1;
            i_1 = _e80 + WG;
        }
        loop_init_3 = false;
        uint _e57 = i_1;
        uint _e60 = params.n;
        if (_e57 < _e60) {
        } else {
            break;
        }
        {
            float _e64 = params.scale;
            uint _e66 = i_1;
            float _e69 = x[start + _e66];
            float _e71 = most;
            float value_2 = metal::exp((_e64 * _e69) - _e71);
            uint _e75 = i_1;
            y[to + _e75] = value_2;
            float _e78 = sum;
            sum = _e78 + value_2;
        }
    }
    float _e84 = sum;
    put_sum(0u, _e84, lane, partials);
    finish_sums(lane);
    float _e86 = sum_of(0u, lane, partials);
    sum = _e86;
    i_2 = lane.index;
    bool loop_init_4 = true;
    while(true) {
        if (!loop_init_4) {
            uint _e101 = i_2;
            i_2 = _e101 + WG;
        }
        loop_init_4 = false;
        uint _e89 = i_2;
        uint _e92 = params.n;
        if (_e89 < _e92) {
        } else {
            break;
        }
        {
            uint _e95 = i_2;
            float _e98 = y[to + _e95];
            float _e99 = sum;
            y[to + _e95] = _e98 / _e99;
        }
    }
    return;
}
