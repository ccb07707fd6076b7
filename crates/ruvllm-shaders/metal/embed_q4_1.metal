// embed_q4_1, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 256. Buffers: params 0, w 1, y 2, pass_counts 16, rows 17.
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
    uint n_units;
    uint n_quads;
    uint row_words;
    uint n_out;
    uint w_offset;
    uint first_token;
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
typedef uint type_2[1];
typedef float type_3[1];
typedef RowRecord type_5[1];
struct Lane {
    uint index;
};
struct Unit {
    metal::uint4 q;
    metal::float2 dm;
    char _pad2[8];
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
constant bool RAGGED = false;

metal::uint4 words4_(
    uint at,
    device type_2 const& w,
    constant _mslBufferSizes& _buffer_sizes
) {
    uint _e3 = w[at];
    uint _e8 = w[at + 1u];
    uint _e13 = w[at + 2u];
    uint _e18 = w[at + 3u];
    return metal::uint4(_e3, _e8, _e13, _e18);
}

float half_at(
    uint plane,
    uint i_1,
    device type_2 const& w,
    constant _mslBufferSizes& _buffer_sizes
) {
    uint _e7 = w[plane + (i_1 >> 1u)];
    metal::float2 both = float2(as_type<half2>(_e7));
    return ((i_1 & 1u) == 1u) ? both.y : both.x;
}

uint byte_at(
    uint plane_1,
    uint i_2,
    device type_2 const& w,
    constant _mslBufferSizes& _buffer_sizes
) {
    uint _e7 = w[plane_1 + (i_2 >> 2u)];
    return (_e7 >> (8u * (i_2 & 3u))) & 255u;
}

uint byte_of(
    uint word,
    uint i_3
) {
    return (word >> (8u * i_3)) & 255u;
}

uint nibbles(
    metal::uint4 q,
    uint i_4
) {
    return (q[i_4 & 3u] >> (4u * (i_4 >> 2u))) & 252645135u;
}

uint fifth_bits(
    uint bits,
    uint i_5
) {
    uint four = (bits >> (4u * i_5)) & 15u;
    return ((four * 2113665u) & 16843009u) << 4u;
}

metal::float4 unsigned4_(
    uint bytes
) {
    return static_cast<metal::float4>(uint4(as_type<packed_uchar4>(bytes)));
}

metal::float2 scale_min(
    metal::uint4 head,
    uint j
) {
    uint b = j & 3u;
    uint _e5 = byte_of(head.y, b);
    uint _e7 = byte_of(head.z, b);
    uint _e9 = byte_of(head.w, b);
    metal::uint2 first = metal::uint2(_e5 & 63u, _e7 & 63u);
    metal::uint2 second = metal::uint2((_e9 & 15u) | ((_e5 >> 6u) << 4u), (_e9 >> 4u) | ((_e7 >> 6u) << 4u));
    return static_cast<metal::float2>((j >= 4u) ? second : first) * float2(as_type<half2>(head.x));
}

Unit load_unit(
    uint row,
    uint u,
    constant Params& params,
    device type_2 const& w,
    constant _mslBufferSizes& _buffer_sizes
) {
    metal::uint4 _e5 = words4_(row + (4u * u), w, _buffer_sizes);
    uint _e10 = params.n_units;
    uint _e15 = w[(row + (4u * _e10)) + u];
    return Unit {_e5, float2(as_type<half2>(_e15))};
}

metal::float4 quad_(
    Unit unit,
    uint i_6
) {
    uint _e5 = nibbles(unit.q, i_6);
    metal::float4 _e6 = unsigned4_(_e5);
    return (unit.dm.x * _e6) + metal::float4(unit.dm.y);
}
uint naga_div(uint lhs, uint rhs) {
    return lhs / metal::select(rhs, 1u, rhs == 0u);
}

uint naga_mod(uint lhs, uint rhs) {
    return lhs % metal::select(rhs, 1u, rhs == 0u);
}


struct embed_q4_1_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void embed_q4_1_(
  uint index [[thread_index_in_threadgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_2 const& w [[buffer(1)]]
, device type_3& y [[buffer(2)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, device type_5 const& rows [[buffer(17)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index };
    bool local = {};
    bool local_1 = {};
    uint i = 0u;
    uint at_1 = (group.x * WG) + lane.index;
    uint row_1 = group.y;
    uint _e11 = rows[row_1].token;
    uint _e14 = params.first_token;
    uint token = _e11 - _e14;
    uint _e18 = params.n_quads;
    if (!((at_1 >= _e18))) {
        uint _e26 = params.count;
        uint _e28 = pass_counts[_e26];
        local = row_1 >= _e28;
    } else {
        local = true;
    }
    bool _e31 = local;
    if (!(_e31)) {
        uint _e37 = params.n_out;
        local_1 = token >= _e37;
    } else {
        local_1 = true;
    }
    bool _e40 = local_1;
    if (_e40) {
        return;
    }
    uint _e43 = params.w_offset;
    uint _e46 = params.row_words;
    Unit _e51 = load_unit(_e43 + (token * _e46), naga_div(at_1, 8u), params, w, _buffer_sizes);
    float _e54 = params.scale;
    metal::float4 _e57 = quad_(_e51, naga_mod(at_1, 8u));
    metal::float4 values = _e54 * _e57;
    uint _e61 = params.y_offset;
    uint _e64 = params.y_stride;
    uint to = (_e61 + (row_1 * _e64)) + (4u * at_1);
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e82 = i;
            i = _e82 + 1u;
        }
        loop_init = false;
        uint _e72 = i;
        if (_e72 < 4u) {
        } else {
            break;
        }
        {
            uint _e76 = i;
            uint _e79 = i;
            y[to + _e76] = values[_e79];
        }
    }
    return;
}
