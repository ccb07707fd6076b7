// matmul_q5_k, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 256. Buffers: params 0, w 1, x 2, bias 3, y 4, pass_counts 16.
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
    uint n_units;
    uint n_quads;
    uint row_words;
    uint n_out;
    uint w_offset;
    uint bias_offset;
    uint x_offset;
    uint x_stride;
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
typedef uint type_1[1];
typedef metal::float4 type_4[1];
typedef float type_5[1];
typedef RowRecord type_7[1];
typedef metal::float4 Quad;
struct Lane {
    uint index;
};
struct Unit {
    metal::uint4 q;
    uint bits;
    char _pad2[4];
    metal::float2 dm;
};
struct type_11 {
    Quad inner[512];
};
struct type_13 {
    metal::float4 inner[4];
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
constant uint TILE = 64u;

metal::uint4 words4_(
    uint at,
    device type_1 const& w,
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
    uint i_2,
    device type_1 const& w,
    constant _mslBufferSizes& _buffer_sizes
) {
    uint _e7 = w[plane + (i_2 >> 1u)];
    metal::float2 both = float2(as_type<half2>(_e7));
    return ((i_2 & 1u) == 1u) ? both.y : both.x;
}

uint byte_at(
    uint plane_1,
    uint i_3,
    device type_1 const& w,
    constant _mslBufferSizes& _buffer_sizes
) {
    uint _e7 = w[plane_1 + (i_3 >> 2u)];
    return (_e7 >> (8u * (i_3 & 3u))) & 255u;
}

uint byte_of(
    uint word,
    uint i_4
) {
    return (word >> (8u * i_4)) & 255u;
}

uint nibbles(
    metal::uint4 q,
    uint i_5
) {
    return (q[i_5 & 3u] >> (4u * (i_5 >> 2u))) & 252645135u;
}

uint fifth_bits(
    uint bits,
    uint i_6
) {
    uint four = (bits >> (4u * i_6)) & 15u;
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
    uint u_1,
    constant Params& params,
    device type_1 const& w,
    constant _mslBufferSizes& _buffer_sizes
) {
    uint _e5 = params.n_units;
    uint bits_1 = row + (4u * _e5);
    uint _e10 = params.n_units;
    metal::uint4 _e17 = words4_((bits_1 + _e10) + (4u * (u_1 >> 3u)), w, _buffer_sizes);
    metal::uint4 _e21 = words4_(row + (4u * u_1), w, _buffer_sizes);
    uint _e25 = w[bits_1 + u_1];
    metal::float2 _e28 = scale_min(_e17, u_1 & 7u);
    return Unit {_e21, _e25, {}, _e28};
}

metal::float4 quad_(
    Unit unit,
    uint i_7
) {
    uint _e5 = nibbles(unit.q, i_7);
    uint _e7 = fifth_bits(unit.bits, i_7);
    metal::float4 _e9 = unsigned4_(_e5 | _e7);
    return (unit.dm.x * _e9) - metal::float4(unit.dm.y);
}

void store(
    uint at_1,
    uint out,
    float product,
    constant Params& params,
    device type_5 const& bias,
    device type_5& y,
    constant _mslBufferSizes& _buffer_sizes
) {
    float value = {};
    value = product;
    uint _e6 = params.flags;
    if ((_e6 & HAS_BIAS) != 0u) {
        float _e11 = value;
        uint _e15 = params.bias_offset;
        float _e18 = bias[_e15 + out];
        value = _e11 + _e18;
    }
    uint _e22 = params.flags;
    if ((_e22 & ACCUMULATE) != 0u) {
        float _e27 = value;
        float _e30 = y[at_1];
        value = _e27 + _e30;
    }
    float _e34 = value;
    y[at_1] = _e34;
    return;
}
uint naga_div(uint lhs, uint rhs) {
    return lhs / metal::select(rhs, 1u, rhs == 0u);
}

uint naga_mod(uint lhs, uint rhs) {
    return lhs % metal::select(rhs, 1u, rhs == 0u);
}


struct matmul_q5_kInput {
};
[[max_total_threads_per_threadgroup(256)]] kernel void matmul_q5_k(
  uint index [[thread_index_in_threadgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_1 const& w [[buffer(1)]]
, device type_4 const& x [[buffer(2)]]
, device type_5 const& bias [[buffer(3)]]
, device type_5& y [[buffer(4)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, threadgroup type_11& w_tile
, threadgroup type_11& x_tile
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index };
    bool local = {};
    type_13 sums = {};
    uint u = 0u;
    uint i = {};
    bool local_1 = {};
    uint i_1 = {};
    uint r = {};
    uint r_1 = 0u;
    uint o = {};
    bool local_2 = {};
    uint first_out = TILE * group.x;
    uint first_row = TILE * group.y;
    uint _e11 = params.count;
    uint n_rows = pass_counts[_e11];
    uint _e16 = params.n_out;
    if (!((first_out >= _e16))) {
        local = first_row >= n_rows;
    } else {
        local = true;
    }
    bool _e23 = local;
    if (_e23) {
        return;
    }
    uint loaded = naga_div(lane.index, 4u);
    uint part = 2u * naga_mod(lane.index, 4u);
    uint _e34 = params.w_offset;
    uint _e38 = params.n_out;
    uint _e44 = params.row_words;
    uint w_row = _e34 + (metal::min(first_out + loaded, _e38 - 1u) * _e44);
    uint _e49 = params.x_offset;
    uint _e56 = params.x_stride;
    uint x_row = naga_div(_e49 + (metal::min(first_row + loaded, n_rows - 1u) * _e56), 4u);
    uint out_1 = 4u * naga_mod(lane.index, 16u);
    uint row_1 = 4u * naga_div(lane.index, 16u);
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e201 = u;
            u = _e201 + 1u;
        }
        loop_init = false;
        uint _e74 = u;
        uint _e77 = params.n_units;
        if (_e74 < _e77) {
        } else {
            break;
        }
        {
            uint _e79 = u;
            Unit _e80 = load_unit(w_row, _e79, params, w, _buffer_sizes);
            i = part;
            bool loop_init_1 = true;
            while(true) {
                if (!loop_init_1) {
                    uint _e126 = i;
                    i = _e126 + 1u;
                }
                loop_init_1 = false;
                uint _e82 = i;
                if (_e82 < (part + 2u)) {
                } else {
                    break;
                }
                {
                    uint _e87 = u;
                    uint _e89 = i;
                    uint at_2 = (8u * _e87) + _e89;
                    if (false) {
                        uint _e96 = params.n_quads;
                        local_1 = at_2 < _e96;
                    } else {
                        local_1 = true;
                    }
                    bool inside = local_1;
                    uint _e103 = i;
                    uint _e106 = i;
                    metal::float4 _e107 = quad_(_e80, _e106);
                    w_tile.inner[(8u * loaded) + _e103] = static_cast<metal::float4>(_e107);
                    uint _e112 = i;
                    metal::float4 _e122 = x[x_row + (inside ? at_2 : 0u)];
                    x_tile.inner[(8u * loaded) + _e112] = static_cast<metal::float4>(inside ? _e122 : metal::float4(0.0));
                }
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            i_1 = 0u;
            bool loop_init_2 = true;
            while(true) {
                if (!loop_init_2) {
                    uint _e198 = i_1;
                    i_1 = _e198 + 1u;
                }
                loop_init_2 = false;
                uint _e130 = i_1;
                if (_e130 < 8u) {
                } else {
                    break;
                }
                {
                    uint _e136 = i_1;
                    Quad a = w_tile.inner[(8u * out_1) + _e136];
                    uint _e145 = i_1;
                    Quad b_1 = w_tile.inner[(8u * (out_1 + 1u)) + _e145];
                    uint _e154 = i_1;
                    Quad c = w_tile.inner[(8u * (out_1 + 2u)) + _e154];
                    uint _e163 = i_1;
                    Quad d = w_tile.inner[(8u * (out_1 + 3u)) + _e163];
                    r = 0u;
                    bool loop_init_3 = true;
                    while(true) {
                        if (!loop_init_3) {
                            uint _e195 = r;
                            r = _e195 + 1u;
                        }
                        loop_init_3 = false;
                        uint _e169 = r;
                        if (_e169 < 4u) {
                        } else {
                            break;
                        }
                        {
                            uint _e174 = r;
                            uint _e177 = i_1;
                            Quad q_1 = x_tile.inner[(8u * (row_1 + _e174)) + _e177];
                            uint _e181 = r;
                            metal::float4 _e183 = sums.inner[_e181];
                            sums.inner[_e181] = _e183 + metal::float4(static_cast<float>(metal::dot(a, q_1)), static_cast<float>(metal::dot(b_1, q_1)), static_cast<float>(metal::dot(c, q_1)), static_cast<float>(metal::dot(d, q_1)));
                        }
                    }
                }
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        }
    }
    bool loop_init_4 = true;
    while(true) {
        if (!loop_init_4) {
            uint _e246 = r_1;
            r_1 = _e246 + 1u;
        }
        loop_init_4 = false;
        uint _e205 = r_1;
        if (_e205 < 4u) {
        } else {
            break;
        }
        {
            o = 0u;
            bool loop_init_5 = true;
            while(true) {
                if (!loop_init_5) {
                    uint _e243 = o;
                    o = _e243 + 1u;
                }
                loop_init_5 = false;
                uint _e210 = o;
                if (_e210 < 4u) {
                } else {
                    break;
                }
                {
                    uint _e214 = r_1;
                    uint at_row = (first_row + row_1) + _e214;
                    uint _e217 = o;
                    uint at_out = (first_out + out_1) + _e217;
                    if (at_row < n_rows) {
                        uint _e224 = params.n_out;
                        local_2 = at_out < _e224;
                    } else {
                        local_2 = false;
                    }
                    bool _e227 = local_2;
                    if (_e227) {
                        uint _e230 = params.y_offset;
                        uint _e233 = params.y_stride;
                        uint _e237 = r_1;
                        uint _e239 = o;
                        float _e241 = sums.inner[_e237][_e239];
                        store((_e230 + (at_row * _e233)) + at_out, at_out, _e241, params, bias, y, _buffer_sizes);
                    }
                }
            }
        }
    }
    return;
}
