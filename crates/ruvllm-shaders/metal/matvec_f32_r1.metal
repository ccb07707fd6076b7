// matvec_f32_r1, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 64. Buffers: params 0, w 1, x 2, bias 3, y 4, pass_counts 16.
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
struct Lane {
    uint index;
    uint subgroup;
    uint n_subgroups;
    uint place;
};
struct type_8 {
    float inner[64];
};
struct Unit {
    uint at;
};
struct type_12 {
    uint inner[4];
};
struct type_13 {
    uint inner[1];
};
struct type_14 {
    float inner[4];
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
constant uint GRID_X = 32768u;
constant uint ROWS = 1u;
constant uint OUTS = 4u;
constant uint N_SUMS = 4u;
constant uint N_PARTIALS = 16u;
constant bool RAGGED = true;

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
    float sum = 0.0;
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
            float _e9 = sum;
            uint _e13 = i_1;
            float _e16 = partials.inner[(slot_2 * N_PARTIALS) + _e13];
            sum = _e9 + _e16;
        }
    }
    float _e21 = sum;
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
    uint i_3,
    device type_1 const& w,
    constant _mslBufferSizes& _buffer_sizes
) {
    uint _e7 = w[plane + (i_3 >> 1u)];
    metal::float2 both = float2(as_type<half2>(_e7));
    return ((i_3 & 1u) == 1u) ? both.y : both.x;
}

uint byte_at(
    uint plane_1,
    uint i_4,
    device type_1 const& w,
    constant _mslBufferSizes& _buffer_sizes
) {
    uint _e7 = w[plane_1 + (i_4 >> 2u)];
    return (_e7 >> (8u * (i_4 & 3u))) & 255u;
}

uint byte_of(
    uint word,
    uint i_5
) {
    return (word >> (8u * i_5)) & 255u;
}

uint nibbles(
    metal::uint4 q,
    uint i_6
) {
    return (q[i_6 & 3u] >> (4u * (i_6 >> 2u))) & 252645135u;
}

uint fifth_bits(
    uint bits,
    uint i_7
) {
    uint four = (bits >> (4u * i_7)) & 15u;
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
    uint u
) {
    return Unit {row + (32u * u)};
}

metal::float4 quad_(
    Unit unit,
    uint i_8,
    device type_1 const& w,
    constant _mslBufferSizes& _buffer_sizes
) {
    metal::uint4 _e6 = words4_(unit.at + (4u * i_8), w, _buffer_sizes);
    return as_type<metal::float4>(_e6);
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
    float value_2 = {};
    value_2 = product;
    uint _e6 = params.flags;
    if ((_e6 & HAS_BIAS) != 0u) {
        float _e11 = value_2;
        uint _e15 = params.bias_offset;
        float _e18 = bias[_e15 + out];
        value_2 = _e11 + _e18;
    }
    uint _e22 = params.flags;
    if ((_e22 & ACCUMULATE) != 0u) {
        float _e27 = value_2;
        float _e30 = y[at_1];
        value_2 = _e27 + _e30;
    }
    float _e34 = value_2;
    y[at_1] = _e34;
    return;
}

void dot_rows(
    Lane lane_7,
    constant Params& params,
    device type_1 const& w,
    device type_4 const& x,
    threadgroup type_8& partials,
    thread type_12& w_rows,
    thread type_13& x_rows,
    constant _mslBufferSizes& _buffer_sizes
) {
    type_14 sums = {};
    uint u_1 = {};
    uint o_1 = {};
    uint i_9 = {};
    bool local_2 = {};
    uint r_1 = {};
    uint i_10 = 0u;
    u_1 = lane_7.index;
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e72 = u_1;
            u_1 = _e72 + WG;
        }
        loop_init_2 = false;
        uint _e4 = u_1;
        uint _e7 = params.n_units;
        if (_e4 < _e7) {
        } else {
            break;
        }
        {
            o_1 = 0u;
            bool loop_init_3 = true;
            while(true) {
                if (!loop_init_3) {
                    uint _e70 = o_1;
                    o_1 = _e70 + 1u;
                }
                loop_init_3 = false;
                uint _e11 = o_1;
                if (_e11 < OUTS) {
                } else {
                    break;
                }
                {
                    uint _e15 = o_1;
                    uint _e17 = w_rows.inner[_e15];
                    uint _e18 = u_1;
                    Unit _e19 = load_unit(_e17, _e18);
                    i_9 = 0u;
                    bool loop_init_4 = true;
                    while(true) {
                        if (!loop_init_4) {
                            uint _e67 = i_9;
                            i_9 = _e67 + 1u;
                        }
                        loop_init_4 = false;
                        uint _e22 = i_9;
                        if (_e22 < 8u) {
                        } else {
                            break;
                        }
                        {
                            uint _e26 = u_1;
                            uint _e28 = i_9;
                            uint at_2 = (8u * _e26) + _e28;
                            if (RAGGED) {
                                uint _e35 = params.n_quads;
                                local_2 = at_2 >= _e35;
                            } else {
                                local_2 = false;
                            }
                            bool _e38 = local_2;
                            if (_e38) {
                                break;
                            }
                            uint _e39 = i_9;
                            metal::float4 _e40 = quad_(_e19, _e39, w, _buffer_sizes);
                            r_1 = 0u;
                            bool loop_init_5 = true;
                            while(true) {
                                if (!loop_init_5) {
                                    uint _e64 = r_1;
                                    r_1 = _e64 + 1u;
                                }
                                loop_init_5 = false;
                                uint _e43 = r_1;
                                if (_e43 < ROWS) {
                                } else {
                                    break;
                                }
                                {
                                    uint _e46 = o_1;
                                    uint _e49 = r_1;
                                    float _e52 = sums.inner[(_e46 * ROWS) + _e49];
                                    uint _e55 = r_1;
                                    uint _e57 = x_rows.inner[_e55];
                                    metal::float4 _e60 = x[_e57 + at_2];
                                    sums.inner[(_e46 * ROWS) + _e49] = _e52 + metal::dot(_e40, _e60);
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    bool loop_init_6 = true;
    while(true) {
        if (!loop_init_6) {
            uint _e85 = i_10;
            i_10 = _e85 + 1u;
        }
        loop_init_6 = false;
        uint _e77 = i_10;
        if (_e77 < N_SUMS) {
        } else {
            break;
        }
        {
            uint _e80 = i_10;
            uint _e81 = i_10;
            float _e83 = sums.inner[_e81];
            put_sum(_e80, _e83, lane_7, partials);
        }
    }
    finish_sums(lane_7);
    return;
}
uint naga_div(uint lhs, uint rhs) {
    return lhs / metal::select(rhs, 1u, rhs == 0u);
}

uint naga_mod(uint lhs, uint rhs) {
    return lhs % metal::select(rhs, 1u, rhs == 0u);
}


struct matvec_f32_r1_Input {
};
[[max_total_threads_per_threadgroup(64)]] kernel void matvec_f32_r1_(
  uint index [[thread_index_in_threadgroup]]
, uint subgroup [[simdgroup_index_in_threadgroup]]
, uint n_subgroups [[simdgroups_per_threadgroup]]
, uint place [[thread_index_in_simdgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_1 const& w [[buffer(1)]]
, device type_4 const& x [[buffer(2)]]
, device type_5 const& bias [[buffer(3)]]
, device type_5& y [[buffer(4)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, threadgroup type_8& partials
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    type_12 w_rows = {};
    type_13 x_rows = {};
    const Lane lane = { index, subgroup, n_subgroups, place };
    bool local = {};
    uint o = 0u;
    uint r = 0u;
    uint i = {};
    bool local_1 = {};
    uint first_out = OUTS * (group.x + (GRID_X * group.z));
    uint first_row = ROWS * group.y;
    uint _e15 = params.count;
    uint n_rows = pass_counts[_e15];
    uint _e20 = params.n_out;
    if (!((first_out >= _e20))) {
        local = first_row >= n_rows;
    } else {
        local = true;
    }
    bool _e27 = local;
    if (_e27) {
        return;
    }
    bool loop_init_7 = true;
    while(true) {
        if (!loop_init_7) {
            uint _e53 = o;
            o = _e53 + 1u;
        }
        loop_init_7 = false;
        uint _e30 = o;
        if (_e30 < OUTS) {
        } else {
            break;
        }
        {
            uint _e34 = o;
            uint _e38 = params.w_offset;
            uint _e39 = o;
            uint _e43 = params.n_out;
            uint _e49 = params.row_words;
            w_rows.inner[_e34] = _e38 + (metal::min(first_out + _e39, _e43 - 1u) * _e49);
        }
    }
    bool loop_init_8 = true;
    while(true) {
        if (!loop_init_8) {
            uint _e79 = r;
            r = _e79 + 1u;
        }
        loop_init_8 = false;
        uint _e57 = r;
        if (_e57 < ROWS) {
        } else {
            break;
        }
        {
            uint _e61 = r;
            uint _e65 = params.x_offset;
            uint _e66 = r;
            uint _e73 = params.x_stride;
            x_rows.inner[_e61] = naga_div(_e65 + (metal::min(first_row + _e66, n_rows - 1u) * _e73), 4u);
        }
    }
    dot_rows(lane, params, w, x, partials, w_rows, x_rows, _buffer_sizes);
    i = lane.index;
    bool loop_init_9 = true;
    while(true) {
        if (!loop_init_9) {
            uint _e114 = i;
            i = _e114 + WG;
        }
        loop_init_9 = false;
        uint _e83 = i;
        if (_e83 < N_SUMS) {
        } else {
            break;
        }
        {
            uint _e86 = i;
            uint out_1 = first_out + naga_div(_e86, ROWS);
            uint _e90 = i;
            uint row_1 = first_row + naga_mod(_e90, ROWS);
            uint _e96 = params.n_out;
            if (out_1 < _e96) {
                local_1 = row_1 < n_rows;
            } else {
                local_1 = false;
            }
            bool _e102 = local_1;
            if (_e102) {
                uint _e105 = params.y_offset;
                uint _e108 = params.y_stride;
                uint _e112 = i;
                float _e113 = sum_of(_e112, lane, partials);
                store((_e105 + (row_1 * _e108)) + out_1, out_1, _e113, params, bias, y, _buffer_sizes);
            }
        }
    }
    return;
}
