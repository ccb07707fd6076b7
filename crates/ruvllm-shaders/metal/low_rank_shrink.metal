// low_rank_shrink, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 64. Buffers: params 0, x 1, bank 2, members 3, experts 4, t 5, pass_counts 16.
// language: metal2.3
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size1;
    uint size2;
    uint size3;
    uint size4;
    uint size5;
    uint size7;
    uint size8;
};

struct Params {
    uint n_in;
    uint n_out;
    uint n_layers;
    uint layer;
    uint n_slots;
    uint t_len;
    uint x_offset;
    uint x_stride;
    uint x_slot_stride;
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
typedef uint type_3[1];
typedef metal::uint2 type_5[1];
typedef RowRecord type_7[1];
struct Lane {
    uint index;
    uint subgroup;
    uint n_subgroups;
    uint place;
};
struct type_8 {
    float inner[16];
};
struct Place {
    uint at;
    uint rank;
    uint flags;
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
constant uint ADAPTERS = 8u;
constant uint NO_ADAPTER = 4294967295u;
constant uint PLACE_WORDS = 4u;
constant uint FACTOR_F32_ = 1u;
constant uint FACTOR_GAIN = 2u;
constant uint N_SUMS = 1u;
constant uint N_PARTIALS = 16u;

void put_sum(
    uint slot,
    float value,
    Lane lane_1,
    threadgroup type_8& partials
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
    threadgroup type_8& partials
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
    threadgroup type_8& partials
) {
    float sum_1 = 0.0;
    uint i_1 = 0u;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e19 = i_1;
            i_1 = _e19 + 1u;
        }
        loop_init = false;
        uint _e6 = i_1;
        if (_e6 < lane_5.n_subgroups) {
        } else {
            break;
        }
        {
            float _e9 = sum_1;
            uint _e13 = i_1;
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
    threadgroup type_8& partials
) {
    float most = {};
    uint i_2 = 1u;
    float _e6 = partials.inner[slot_3 * N_PARTIALS];
    most = _e6;
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e23 = i_2;
            i_2 = _e23 + 1u;
        }
        loop_init_1 = false;
        uint _e10 = i_2;
        if (_e10 < lane_6.n_subgroups) {
        } else {
            break;
        }
        {
            float _e13 = most;
            uint _e17 = i_2;
            float _e20 = partials.inner[(slot_3 * N_PARTIALS) + _e17];
            most = metal::max(_e13, _e20);
        }
    }
    float _e25 = most;
    return _e25;
}

uint layer_of(
    uint row,
    uint slot_4,
    constant Params& params,
    device type_3 const& experts,
    constant _mslBufferSizes& _buffer_sizes
) {
    uint _e4 = params.flags;
    if ((_e4 & HAS_EXPERTS) != 0u) {
        uint _e11 = params.layer;
        uint _e15 = params.n_slots;
        uint _e19 = experts[(row * _e15) + slot_4];
        return _e11 + _e19;
    }
    uint _e23 = params.layer;
    uint _e27 = params.flags;
    return _e23 + (((_e27 & SLOT_IS_EXPERT) != 0u) ? slot_4 : 0u);
}

Place place_of(
    uint adapter,
    uint layer,
    constant Params& params,
    device type_3 const& bank,
    constant _mslBufferSizes& _buffer_sizes
) {
    uint _e5 = params.n_layers;
    uint at_1 = PLACE_WORDS * ((adapter * _e5) + layer);
    uint _e11 = bank[at_1];
    uint _e16 = bank[at_1 + 1u];
    uint _e21 = bank[at_1 + 2u];
    return Place {_e11, _e16, _e21};
}

uint naga_div(uint lhs, uint rhs) {
    return lhs / metal::select(rhs, 1u, rhs == 0u);
}

uint row_words(
    uint n,
    uint flags
) {
    return ((flags & FACTOR_F32_) != 0u) ? n : naga_div(n + 1u, 2u);
}

uint naga_mod(uint lhs, uint rhs) {
    return lhs % metal::select(rhs, 1u, rhs == 0u);
}

float factor(
    uint at,
    uint i_3,
    uint flags_1,
    device type_3 const& bank,
    constant _mslBufferSizes& _buffer_sizes
) {
    if ((flags_1 & FACTOR_F32_) != 0u) {
        uint _e10 = bank[at + i_3];
        return as_type<float>(_e10);
    }
    uint _e17 = bank[at + naga_div(i_3, 2u)];
    return float2(as_type<half2>(_e17))[naga_mod(i_3, 2u)];
}

struct low_rank_shrinkInput {
};
[[max_total_threads_per_threadgroup(64)]] kernel void low_rank_shrink(
  uint index [[thread_index_in_threadgroup]]
, uint subgroup [[simdgroup_index_in_threadgroup]]
, uint n_subgroups [[simdgroups_per_threadgroup]]
, uint place_1 [[thread_index_in_simdgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_2 const& x [[buffer(1)]]
, device type_3 const& bank [[buffer(2)]]
, device type_5 const& members [[buffer(3)]]
, device type_3 const& experts [[buffer(4)]]
, device type_2& t [[buffer(5)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, threadgroup type_8& partials
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index, subgroup, n_subgroups, place_1 };
    Place place = Place {0u, 0u, 0u};
    float strength = 0.0;
    uint rank = {};
    uint m = 0u;
    float sum = 0.0;
    uint i = {};
    metal::float2 pair = {};
    uint row_1 = group.y;
    uint slot_5 = group.z;
    uint _e7 = params.count;
    uint _e9 = pass_counts[_e7];
    if (row_1 >= _e9) {
        return;
    }
    uint _e11 = layer_of(row_1, slot_5, params, experts, _buffer_sizes);
    rank = group.x;
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e53 = m;
            m = _e53 + 1u;
        }
        loop_init_2 = false;
        uint _e23 = m;
        if (_e23 < ADAPTERS) {
        } else {
            break;
        }
        {
            uint _e29 = m;
            metal::uint2 member_1 = members[(row_1 * ADAPTERS) + _e29];
            if (member_1.x == NO_ADAPTER) {
                place.rank = 0u;
                break;
            }
            Place _e39 = place_of(member_1.x, _e11, params, bank, _buffer_sizes);
            place = _e39;
            strength = as_type<float>(member_1.y);
            uint _e42 = rank;
            uint _e44 = place.rank;
            if (_e42 < _e44) {
                break;
            }
            uint _e46 = rank;
            uint _e48 = place.rank;
            rank = _e46 - _e48;
            place.rank = 0u;
        }
    }
    uint _e55 = rank;
    uint _e57 = place.rank;
    if (_e55 >= _e57) {
        return;
    }
    uint _e61 = place.at;
    uint _e62 = rank;
    uint _e65 = bank[_e61 + _e62];
    float multiplier = as_type<float>(_e65);
    uint _e68 = place.at;
    uint _e70 = place.rank;
    uint _e72 = rank;
    uint _e75 = params.n_in;
    uint _e77 = place.flags;
    uint _e78 = row_words(_e75, _e77);
    uint a = (_e68 + _e70) + (_e72 * _e78);
    uint _e83 = params.x_offset;
    uint _e86 = params.x_stride;
    uint _e91 = params.x_slot_stride;
    uint start = (_e83 + (row_1 * _e86)) + (slot_5 * _e91);
    i = lane.index;
    bool loop_init_3 = true;
    while(true) {
        if (!loop_init_3) {
            uint _e159 = i;
            i = _e159 + WG;
        }
        loop_init_3 = false;
        uint _e98 = i;
        uint _e101 = params.n_in;
        if (_e98 < naga_div(_e101, 2u)) {
        } else {
            break;
        }
        {
            pair = metal::float2 {};
            uint _e108 = place.flags;
            if ((_e108 & FACTOR_F32_) != 0u) {
                uint _e115 = i;
                uint _e119 = bank[a + (2u * _e115)];
                uint _e123 = i;
                uint _e129 = bank[(a + (2u * _e123)) + 1u];
                pair = metal::float2(as_type<float>(_e119), as_type<float>(_e129));
            } else {
                uint _e133 = i;
                uint _e136 = bank[a + _e133];
                pair = float2(as_type<half2>(_e136));
            }
            float _e138 = sum;
            metal::float2 _e139 = pair;
            uint _e142 = i;
            float _e146 = x[start + (2u * _e142)];
            uint _e149 = i;
            float _e155 = x[(start + (2u * _e149)) + 1u];
            sum = _e138 + metal::dot(_e139, metal::float2(_e146, _e155));
        }
    }
    float _e163 = sum;
    put_sum(0u, _e163, lane, partials);
    finish_sums(lane);
    if (lane.index == 0u) {
        uint _e170 = params.n_slots;
        uint _e175 = params.t_len;
        float _e181 = sum_of(0u, lane, partials);
        float _e183 = strength;
        t[(((row_1 * _e170) + slot_5) * _e175) + group.x] = (_e181 * multiplier) * _e183;
        return;
    } else {
        return;
    }
}
