// low_rank_expand, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 256. Buffers: params 0, t 1, bank 2, members 3, experts 4, bias 5, y 6, pass_counts 16.
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
    uint size6;
    uint size8;
    uint size9;
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
constant uint WG = 256u;
constant uint ADAPTERS = 8u;
constant uint NO_ADAPTER = 4294967295u;
constant uint PLACE_WORDS = 4u;
constant uint FACTOR_F32_ = 1u;
constant uint FACTOR_GAIN = 2u;

uint layer_of(
    uint row,
    uint slot,
    constant Params& params,
    device type_3 const& experts,
    constant _mslBufferSizes& _buffer_sizes
) {
    uint _e4 = params.flags;
    if ((_e4 & HAS_EXPERTS) != 0u) {
        uint _e11 = params.layer;
        uint _e15 = params.n_slots;
        uint _e19 = experts[(row * _e15) + slot];
        return _e11 + _e19;
    }
    uint _e23 = params.layer;
    uint _e27 = params.flags;
    return _e23 + (((_e27 & SLOT_IS_EXPERT) != 0u) ? slot : 0u);
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
    uint i,
    uint flags_1,
    device type_3 const& bank,
    constant _mslBufferSizes& _buffer_sizes
) {
    if ((flags_1 & FACTOR_F32_) != 0u) {
        uint _e10 = bank[at + i];
        return as_type<float>(_e10);
    }
    uint _e17 = bank[at + naga_div(i, 2u)];
    return float2(as_type<half2>(_e17))[naga_mod(i, 2u)];
}

struct low_rank_expandInput {
};
[[max_total_threads_per_threadgroup(256)]] kernel void low_rank_expand(
  uint index [[thread_index_in_threadgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_2 const& t [[buffer(1)]]
, device type_3 const& bank [[buffer(2)]]
, device type_5 const& members [[buffer(3)]]
, device type_3 const& experts [[buffer(4)]]
, device type_2 const& bias [[buffer(5)]]
, device type_2& y [[buffer(6)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index };
    bool local = {};
    uint from_rank = {};
    float value = {};
    float gain = 0.0;
    float sum = 0.0;
    bool is_changed = false;
    uint m = 0u;
    uint r = {};
    uint j = (group.x * WG) + lane.index;
    uint row_1 = group.y;
    uint slot_1 = group.z;
    uint _e11 = params.n_out;
    if (!((j >= _e11))) {
        uint _e19 = params.count;
        uint _e21 = pass_counts[_e19];
        local = row_1 >= _e21;
    } else {
        local = true;
    }
    bool _e24 = local;
    if (_e24) {
        return;
    }
    uint _e25 = layer_of(row_1, slot_1, params, experts, _buffer_sizes);
    uint _e28 = params.y_offset;
    uint _e31 = params.y_stride;
    uint _e36 = params.n_out;
    uint at_2 = ((_e28 + (row_1 * _e31)) + (slot_1 * _e36)) + j;
    uint _e42 = params.n_slots;
    uint _e47 = params.t_len;
    from_rank = ((row_1 * _e42) + slot_1) * _e47;
    float _e52 = y[at_2];
    value = _e52;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e141 = m;
            m = _e141 + 1u;
        }
        loop_init = false;
        uint _e62 = m;
        if (_e62 < ADAPTERS) {
        } else {
            break;
        }
        {
            uint _e68 = m;
            metal::uint2 member_1 = members[(row_1 * ADAPTERS) + _e68];
            if (member_1.x == NO_ADAPTER) {
                break;
            }
            Place _e76 = place_of(member_1.x, _e25, params, bank, _buffer_sizes);
            if (_e76.rank == 0u) {
                continue;
            }
            is_changed = true;
            uint _e83 = params.n_out;
            uint _e85 = row_words(_e83, _e76.flags);
            uint _e91 = params.n_in;
            uint _e93 = row_words(_e91, _e76.flags);
            uint b = _e76.at + (_e76.rank * (1u + _e93));
            if ((_e76.flags & FACTOR_GAIN) != 0u) {
                float _e102 = gain;
                uint _e111 = bank[(b + (_e76.rank * _e85)) + j];
                gain = _e102 + (as_type<float>(member_1.y) * as_type<float>(_e111));
            }
            r = 0u;
            bool loop_init_1 = true;
            while(true) {
                if (!loop_init_1) {
                    uint _e135 = r;
                    r = _e135 + 1u;
                }
                loop_init_1 = false;
                uint _e117 = r;
                if (_e117 < _e76.rank) {
                } else {
                    break;
                }
                {
                    float _e120 = sum;
                    uint _e122 = from_rank;
                    uint _e123 = r;
                    float _e126 = t[_e122 + _e123];
                    uint _e127 = r;
                    float _e131 = factor(b + (_e127 * _e85), j, _e76.flags, bank, _buffer_sizes);
                    sum = _e120 + (_e126 * _e131);
                }
            }
            uint _e137 = from_rank;
            from_rank = _e137 + _e76.rank;
        }
    }
    bool _e143 = is_changed;
    if (_e143) {
        float _e144 = value;
        float _e145 = gain;
        float _e149 = sum;
        value = (_e144 * (1.0 + _e145)) + _e149;
    }
    uint _e153 = params.flags;
    if ((_e153 & HAS_BIAS) != 0u) {
        float _e158 = value;
        uint _e162 = params.layer;
        uint _e166 = params.n_out;
        float _e170 = bias[((_e25 - _e162) * _e166) + j];
        value = _e158 + _e170;
    }
    float _e174 = value;
    y[at_2] = _e174;
    return;
}
