// layer_norm, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 256. Buffers: params 0, x 1, weight 2, bias 3, y 4, pass_counts 16.
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
    uint x_offset;
    uint x_stride;
    uint y_offset;
    uint y_stride;
    float eps;
    uint count;
    uint flags;
    uint n_sets;
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
struct type_7 {
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
constant bool CENTRED = true;
constant uint N_SUMS = 1u;
constant uint N_PARTIALS = 64u;

void put_sum(
    uint slot,
    float value_1,
    Lane lane_1,
    threadgroup type_7& partials
) {
    float unnamed = metal::simd_sum(value_1);
    if (lane_1.place == 0u) {
        partials.inner[(slot * N_PARTIALS) + lane_1.subgroup] = unnamed;
        return;
    } else {
        return;
    }
}

void put_max(
    uint slot_1,
    float value_2,
    Lane lane_2,
    threadgroup type_7& partials
) {
    float unnamed_1 = metal::simd_max(value_2);
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
    threadgroup type_7& partials
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
    threadgroup type_7& partials
) {
    float most = {};
    uint i_4 = 1u;
    float _e6 = partials.inner[slot_3 * N_PARTIALS];
    most = _e6;
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
            float _e13 = most;
            uint _e17 = i_4;
            float _e20 = partials.inner[(slot_3 * N_PARTIALS) + _e17];
            most = metal::max(_e13, _e20);
        }
    }
    float _e25 = most;
    return _e25;
}
uint naga_mod(uint lhs, uint rhs) {
    return lhs % metal::select(rhs, 1u, rhs == 0u);
}


struct layer_normInput {
};
[[max_total_threads_per_threadgroup(256)]] kernel void layer_norm(
  uint index [[thread_index_in_threadgroup]]
, uint subgroup [[simdgroup_index_in_threadgroup]]
, uint n_subgroups [[simdgroups_per_threadgroup]]
, uint place [[thread_index_in_simdgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_2 const& x [[buffer(1)]]
, device type_2 const& weight [[buffer(2)]]
, device type_2 const& bias [[buffer(3)]]
, device type_2& y [[buffer(4)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, threadgroup type_7& partials
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index, subgroup, n_subgroups, place };
    float mean = 0.0;
    float sum = 0.0;
    uint i = {};
    float squares = 0.0;
    uint i_1 = {};
    uint i_2 = {};
    float value = {};
    uint row = group.y;
    uint _e6 = params.count;
    uint _e8 = pass_counts[_e6];
    if (row >= _e8) {
        return;
    }
    uint _e12 = params.x_offset;
    uint _e15 = params.x_stride;
    uint _e21 = params.n;
    uint start = (_e12 + (row * _e15)) + (group.x * _e21);
    uint _e26 = params.y_offset;
    uint _e29 = params.y_stride;
    uint _e35 = params.n;
    uint to = (_e26 + (row * _e29)) + (group.x * _e35);
    if (CENTRED) {
        i = lane.index;
        bool loop_init_2 = true;
        while(true) {
            if (!loop_init_2) {
                uint _e57 = i;
                i = _e57 + WG;
            }
            loop_init_2 = false;
            uint _e45 = i;
            uint _e48 = params.n;
            if (_e45 < _e48) {
            } else {
                break;
            }
            {
                float _e50 = sum;
                uint _e52 = i;
                float _e55 = x[start + _e52];
                sum = _e50 + _e55;
            }
        }
        float _e61 = sum;
        put_sum(0u, _e61, lane, partials);
        finish_sums(lane);
        float _e63 = sum_of(0u, lane, partials);
        uint _e66 = params.n;
        mean = _e63 / static_cast<float>(_e66);
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    }
    i_1 = lane.index;
    bool loop_init_3 = true;
    while(true) {
        if (!loop_init_3) {
            uint _e88 = i_1;
            i_1 = _e88 + WG;
        }
        loop_init_3 = false;
        uint _e73 = i_1;
        uint _e76 = params.n;
        if (_e73 < _e76) {
        } else {
            break;
        }
        {
            uint _e79 = i_1;
            float _e82 = x[start + _e79];
            float _e83 = mean;
            float value_3 = _e82 - _e83;
            float _e85 = squares;
            squares = _e85 + (value_3 * value_3);
        }
    }
    float _e92 = squares;
    put_sum(0u, _e92, lane, partials);
    finish_sums(lane);
    uint _e96 = params.n_sets;
    uint _e102 = params.n;
    uint first = naga_mod(group.x, metal::max(_e96, 1u)) * _e102;
    float _e105 = sum_of(0u, lane, partials);
    uint _e108 = params.n;
    float _e113 = params.eps;
    float scale = metal::rsqrt((_e105 / static_cast<float>(_e108)) + _e113);
    i_2 = lane.index;
    bool loop_init_4 = true;
    while(true) {
        if (!loop_init_4) {
            uint _e165 = i_2;
            i_2 = _e165 + WG;
        }
        loop_init_4 = false;
        uint _e118 = i_2;
        uint _e121 = params.n;
        if (_e118 < _e121) {
        } else {
            break;
        }
        {
            uint _e124 = i_2;
            float _e127 = x[start + _e124];
            float _e128 = mean;
            value = (_e127 - _e128) * scale;
            uint _e134 = params.flags;
            if ((_e134 & HAS_WEIGHT) != 0u) {
                float _e139 = value;
                uint _e141 = i_2;
                float _e144 = weight[first + _e141];
                value = _e139 * _e144;
            }
            uint _e148 = params.flags;
            if ((_e148 & HAS_BIAS) != 0u) {
                float _e153 = value;
                uint _e155 = i_2;
                float _e158 = bias[first + _e155];
                value = _e153 + _e158;
            }
            uint _e161 = i_2;
            float _e164 = value;
            y[to + _e161] = _e164;
        }
    }
    return;
}
