// attention_f16_h4_split, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 64. Buffers: params 0, q 1, k_cache 2, v_cache 3, sinks 4, y 5, pass_counts 16, rows 17, tables 18.
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
    uint n_heads;
    uint n_kv_heads;
    uint k_dim;
    uint v_dim;
    uint q_offset;
    uint q_stride;
    uint y_offset;
    uint y_stride;
    float scale;
    float softcap;
    uint window;
    uint n_splits;
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
typedef RowRecord type_5[1];
struct Lane {
    uint index;
    uint subgroup;
    uint n_subgroups;
    uint place;
};
struct type_8 {
    float inner[64];
};
struct type_9 {
    float inner[1024];
};
struct type_10 {
    float inner[256];
};
struct type_11 {
    float inner[4];
};
struct type_12 {
    float inner[16];
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
constant uint BLOCK = 16u;
constant uint HEADS = 4u;
constant uint HEAD_MAX = 256u;
constant bool SPLIT = true;
constant uint N_SUMS = 4u;
constant uint VALUES_PER_WORD = 2u;
constant uint N_PARTIALS = 16u;
constant uint V_WORDS = 2u;
constant float NEGATIVE = -300000000000000000000000000000000000000.0;

uint pack_kv(
    float a,
    float b
) {
    return as_type<uint>(half2(metal::float2(a, b)));
}

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
            float _e9 = sum;
            uint _e13 = i_3;
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

uint naga_div(uint lhs, uint rhs) {
    return lhs / metal::select(rhs, 1u, rhs == 0u);
}

uint k_at(
    uint block,
    uint head,
    uint token,
    uint word,
    constant Params& params
) {
    uint _e6 = params.k_dim;
    uint n_words = naga_div(_e6, VALUES_PER_WORD);
    uint _e11 = params.n_kv_heads;
    return (((((block * _e11) + head) * n_words) + word) * BLOCK) + token;
}

uint v_at(
    uint block_1,
    uint head_1,
    uint token_1,
    uint word_1,
    constant Params& params
) {
    uint _e6 = params.v_dim;
    uint n_words_1 = naga_div(_e6, VALUES_PER_WORD);
    uint _e11 = params.n_kv_heads;
    return (((((block_1 * _e11) + head_1) * BLOCK) + token_1) * n_words_1) + word_1;
}

float bounded(
    float x
) {
    float e = metal::exp(-2.0 * metal::abs(x));
    return (metal::sign(x) * (1.0 - e)) / (1.0 + e);
}

type_11 scores_of(
    uint block_2,
    uint kv_head,
    uint token_2,
    constant Params& params,
    device type_3 const& k_cache,
    threadgroup type_9& queries,
    constant _mslBufferSizes& _buffer_sizes
) {
    type_11 scores_1 = {};
    uint word_2 = 0u;
    uint h_6 = {};
    uint h_7 = 0u;
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e59 = word_2;
            word_2 = _e59 + 1u;
        }
        loop_init_2 = false;
        uint _e6 = word_2;
        uint _e9 = params.k_dim;
        if (_e6 < naga_div(_e9, VALUES_PER_WORD)) {
        } else {
            break;
        }
        {
            uint _e14 = word_2;
            uint _e15 = k_at(block_2, kv_head, token_2, _e14, params);
            uint bits = k_cache[_e15];
            h_6 = 0u;
            bool loop_init_3 = true;
            while(true) {
                if (!loop_init_3) {
                    uint _e56 = h_6;
                    h_6 = _e56 + 1u;
                }
                loop_init_3 = false;
                uint _e20 = h_6;
                if (_e20 < HEADS) {
                } else {
                    break;
                }
                {
                    uint _e23 = h_6;
                    uint _e26 = word_2;
                    uint at_1 = (_e23 * HEAD_MAX) + (_e26 * VALUES_PER_WORD);
                    if (true) {
                        uint _e31 = h_6;
                        float _e33 = scores_1.inner[_e31];
                        float _e37 = queries.inner[at_1];
                        float _e42 = queries.inner[at_1 + 1u];
                        scores_1.inner[_e31] = _e33 + metal::dot(float2(as_type<half2>(bits)), metal::float2(_e37, _e42));
                    } else {
                        uint _e46 = h_6;
                        float _e48 = scores_1.inner[_e46];
                        float _e52 = queries.inner[at_1];
                        scores_1.inner[_e46] = _e48 + (as_type<float>(bits) * _e52);
                    }
                }
            }
        }
    }
    float _e63 = params.softcap;
    if (_e63 > 0.0) {
        bool loop_init_4 = true;
        while(true) {
            if (!loop_init_4) {
                uint _e86 = h_7;
                h_7 = _e86 + 1u;
            }
            loop_init_4 = false;
            uint _e68 = h_7;
            if (_e68 < HEADS) {
            } else {
                break;
            }
            {
                uint _e71 = h_7;
                float _e75 = params.softcap;
                uint _e76 = h_7;
                float _e78 = scores_1.inner[_e76];
                float _e81 = params.softcap;
                float _e83 = bounded(_e78 / _e81);
                scores_1.inner[_e71] = _e75 * _e83;
            }
        }
    }
    type_11 _e88 = scores_1;
    return _e88;
}

uint naga_mod(uint lhs, uint rhs) {
    return lhs % metal::select(rhs, 1u, rhs == 0u);
}

void add_values(
    thread type_12& sums_1,
    uint first,
    uint end,
    uint blocks,
    uint kv_head_1,
    uint index,
    constant Params& params,
    device type_3 const& v_cache,
    device type_3 const& tables,
    threadgroup type_10& weights,
    constant _mslBufferSizes& _buffer_sizes
) {
    uint t = {};
    uint i_5 = {};
    uint h_8 = {};
    uint _e8 = params.v_dim;
    uint n_words_2 = naga_div(_e8, VALUES_PER_WORD);
    t = first;
    bool loop_init_5 = true;
    while(true) {
        if (!loop_init_5) {
            uint _e83 = t;
            t = _e83 + 1u;
        }
        loop_init_5 = false;
        uint _e12 = t;
        if (_e12 < end) {
        } else {
            break;
        }
        {
            uint _e15 = t;
            uint block_3 = tables[blocks + naga_div(_e15, BLOCK)];
            i_5 = 0u;
            bool loop_init_6 = true;
            while(true) {
                if (!loop_init_6) {
                    uint _e80 = i_5;
                    i_5 = _e80 + 1u;
                }
                loop_init_6 = false;
                uint _e23 = i_5;
                if (_e23 < V_WORDS) {
                } else {
                    break;
                }
                {
                    uint _e26 = i_5;
                    uint word_3 = (_e26 * WG) + index;
                    if (word_3 >= n_words_2) {
                        break;
                    }
                    uint _e32 = t;
                    uint _e35 = v_at(block_3, kv_head_1, naga_mod(_e32, BLOCK), word_3, params);
                    uint bits_1 = v_cache[_e35];
                    h_8 = 0u;
                    bool loop_init_7 = true;
                    while(true) {
                        if (!loop_init_7) {
                            uint _e77 = h_8;
                            h_8 = _e77 + 1u;
                        }
                        loop_init_7 = false;
                        uint _e40 = h_8;
                        if (_e40 < HEADS) {
                        } else {
                            break;
                        }
                        {
                            uint _e43 = h_8;
                            uint _e46 = i_5;
                            uint at_2 = ((_e43 * V_WORDS) + _e46) * VALUES_PER_WORD;
                            uint _e51 = h_8;
                            uint _e54 = t;
                            float weight = weights.inner[(_e51 * WG) + _e54];
                            if (true) {
                                metal::float2 both = weight * float2(as_type<half2>(bits_1));
                                float _e62 = sums_1.inner[at_2];
                                sums_1.inner[at_2] = _e62 + both.x;
                                float _e68 = sums_1.inner[at_2 + 1u];
                                sums_1.inner[at_2 + 1u] = _e68 + both.y;
                            } else {
                                float _e72 = sums_1.inner[at_2];
                                sums_1.inner[at_2] = _e72 + (weight * as_type<float>(bits_1));
                            }
                        }
                    }
                }
            }
        }
    }
    return;
}

struct attention_f16_h4_splitInput {
};
[[max_total_threads_per_threadgroup(64)]] kernel void attention_f16_h4_split(
  uint index_1 [[thread_index_in_threadgroup]]
, uint subgroup [[simdgroup_index_in_threadgroup]]
, uint n_subgroups [[simdgroups_per_threadgroup]]
, uint place [[thread_index_in_simdgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_2 const& q [[buffer(1)]]
, device type_3 const& k_cache [[buffer(2)]]
, device type_3 const& v_cache [[buffer(3)]]
, device type_2 const& sinks [[buffer(4)]]
, device type_2& y [[buffer(5)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, device type_5 const& rows [[buffer(17)]]
, device type_3 const& tables [[buffer(18)]]
, threadgroup type_8& partials
, threadgroup type_9& queries
, threadgroup type_10& weights
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index_1, subgroup, n_subgroups, place };
    bool local = {};
    uint i = {};
    type_11 most = {};
    type_11 total = {};
    type_12 sums = {};
    uint h = 0u;
    bool local_1 = {};
    bool local_2 = {};
    uint tile = {};
    bool local_3 = {};
    type_11 scores = {};
    uint h_1 = {};
    uint h_2 = {};
    uint i_1 = {};
    uint h_3 = {};
    uint h_4 = {};
    uint h_5 = 0u;
    uint at = {};
    float divisor = {};
    uint i_2 = {};
    uint j = {};
    uint row = group.y;
    uint _e5 = params.n_heads;
    uint _e8 = params.n_kv_heads;
    uint group_len = naga_div(_e5, _e8);
    uint n_tiles = naga_div((group_len + HEADS) - 1u, HEADS);
    uint kv_head_2 = naga_div(group.x, n_tiles);
    uint first_1 = naga_mod(group.x, n_tiles) * HEADS;
    uint _e24 = params.n_kv_heads;
    if (!((kv_head_2 >= _e24))) {
        uint _e32 = params.count;
        uint _e34 = pass_counts[_e32];
        local = row >= _e34;
    } else {
        local = true;
    }
    bool _e37 = local;
    if (_e37) {
        return;
    }
    uint n_heads = metal::min(HEADS, group_len - first_1);
    uint first_head = (kv_head_2 * group_len) + first_1;
    uint _e45 = params.q_offset;
    uint _e48 = params.q_stride;
    uint _e53 = params.k_dim;
    uint q_at = (_e45 + (row * _e48)) + (first_head * _e53);
    i = lane.index;
    bool loop_init_8 = true;
    while(true) {
        if (!loop_init_8) {
            uint _e88 = i;
            i = _e88 + WG;
        }
        loop_init_8 = false;
        uint _e58 = i;
        uint _e61 = params.k_dim;
        if (_e58 < (n_heads * _e61)) {
        } else {
            break;
        }
        {
            uint _e65 = i;
            uint _e68 = params.k_dim;
            uint _e72 = i;
            uint _e75 = params.k_dim;
            uint _e80 = i;
            float _e83 = q[q_at + _e80];
            float _e86 = params.scale;
            queries.inner[(naga_div(_e65, _e68) * HEAD_MAX) + naga_mod(_e72, _e75)] = _e83 * _e86;
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    bool loop_init_9 = true;
    while(true) {
        if (!loop_init_9) {
            uint _e133 = h;
            h = _e133 + 1u;
        }
        loop_init_9 = false;
        uint _e96 = h;
        if (_e96 < HEADS) {
        } else {
            break;
        }
        {
            uint _e99 = h;
            most.inner[_e99] = NEGATIVE;
            uint _e104 = params.flags;
            if ((_e104 & HAS_SINKS) != 0u) {
                uint _e111 = h;
                local_1 = _e111 < n_heads;
            } else {
                local_1 = false;
            }
            bool _e114 = local_1;
            if (_e114) {
                local_2 = group.z == 0u;
            } else {
                local_2 = false;
            }
            bool _e121 = local_2;
            if (_e121) {
                uint _e122 = h;
                uint _e125 = h;
                float _e128 = sinks[first_head + _e125];
                most.inner[_e122] = _e128;
                uint _e129 = h;
                total.inner[_e129] = 1.0;
            }
        }
    }
    uint end_1 = rows[row].n_keys;
    uint _e142 = params.window;
    uint _e147 = params.window;
    uint begin = (_e147 > 0u) ? (end_1 - metal::min(end_1, _e142)) : 0u;
    uint table = rows[row].table;
    uint first_tile = begin - naga_mod(begin, BLOCK);
    uint n_key_tiles = naga_div(((end_1 - first_tile) + WG) - 1u, WG);
    uint _e168 = params.n_splits;
    uint n_splits = SPLIT ? _e168 : 1u;
    uint split_len = WG * naga_div((n_key_tiles + n_splits) - 1u, n_splits);
    uint split_begin = first_tile + (group.z * split_len);
    uint split_end = metal::min(end_1, split_begin + split_len);
    tile = split_begin;
    bool loop_init_10 = true;
    while(true) {
        if (!loop_init_10) {
            uint _e325 = tile;
            tile = _e325 + WG;
        }
        loop_init_10 = false;
        uint _e183 = tile;
        if (_e183 < split_end) {
        } else {
            break;
        }
        {
            uint _e185 = tile;
            uint key = _e185 + lane.index;
            if (key >= begin) {
                local_3 = key < split_end;
            } else {
                local_3 = false;
            }
            bool visible = local_3;
            scores = type_11 {};
            if (visible) {
                uint _e201 = tables[table + naga_div(key, BLOCK)];
                type_11 _e204 = scores_of(_e201, kv_head_2, naga_mod(key, BLOCK), params, k_cache, queries, _buffer_sizes);
                scores = _e204;
            }
            h_1 = 0u;
            bool loop_init_11 = true;
            while(true) {
                if (!loop_init_11) {
                    uint _e222 = h_1;
                    h_1 = _e222 + 1u;
                }
                loop_init_11 = false;
                uint _e207 = h_1;
                if (_e207 < HEADS) {
                } else {
                    break;
                }
                {
                    uint _e210 = h_1;
                    uint _e213 = h_1;
                    float _e215 = scores.inner[_e213];
                    scores.inner[_e210] = visible ? _e215 : NEGATIVE;
                    uint _e217 = h_1;
                    uint _e218 = h_1;
                    float _e220 = scores.inner[_e218];
                    put_max(_e217, _e220, lane, partials);
                }
            }
            finish_max(lane);
            h_2 = 0u;
            bool loop_init_12 = true;
            while(true) {
                if (!loop_init_12) {
                    uint _e284 = h_2;
                    h_2 = _e284 + 1u;
                }
                loop_init_12 = false;
                uint _e226 = h_2;
                if (_e226 < HEADS) {
                } else {
                    break;
                }
                {
                    uint _e229 = h_2;
                    float _e231 = most.inner[_e229];
                    uint _e232 = h_2;
                    float _e233 = max_of(_e232, lane, partials);
                    float next = metal::max(_e231, _e233);
                    uint _e235 = h_2;
                    float _e237 = most.inner[_e235];
                    float shrink = metal::exp(_e237 - next);
                    uint _e240 = h_2;
                    most.inner[_e240] = next;
                    uint _e242 = h_2;
                    float _e244 = total.inner[_e242];
                    total.inner[_e242] = _e244 * shrink;
                    i_1 = 0u;
                    bool loop_init_13 = true;
                    while(true) {
                        if (!loop_init_13) {
                            uint _e262 = i_1;
                            i_1 = _e262 + 1u;
                        }
                        loop_init_13 = false;
                        uint _e248 = i_1;
                        if (_e248 < 4u) {
                        } else {
                            break;
                        }
                        {
                            uint _e251 = h_2;
                            uint _e256 = i_1;
                            float _e259 = sums.inner[((_e251 * V_WORDS) * VALUES_PER_WORD) + _e256];
                            sums.inner[((_e251 * V_WORDS) * VALUES_PER_WORD) + _e256] = _e259 * shrink;
                        }
                    }
                    uint _e264 = h_2;
                    uint _e266 = h_2;
                    float _e268 = scores.inner[_e266];
                    scores.inner[_e264] = visible ? metal::exp(_e268 - next) : 0.0;
                    uint _e274 = h_2;
                    uint _e280 = h_2;
                    float _e282 = scores.inner[_e280];
                    weights.inner[(_e274 * WG) + lane.index] = _e282;
                }
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
            h_3 = 0u;
            bool loop_init_14 = true;
            while(true) {
                if (!loop_init_14) {
                    uint _e296 = h_3;
                    h_3 = _e296 + 1u;
                }
                loop_init_14 = false;
                uint _e288 = h_3;
                if (_e288 < HEADS) {
                } else {
                    break;
                }
                {
                    uint _e291 = h_3;
                    uint _e292 = h_3;
                    float _e294 = scores.inner[_e292];
                    put_sum(_e291, _e294, lane, partials);
                }
            }
            finish_sums(lane);
            h_4 = 0u;
            bool loop_init_15 = true;
            while(true) {
                if (!loop_init_15) {
                    uint _e310 = h_4;
                    h_4 = _e310 + 1u;
                }
                loop_init_15 = false;
                uint _e300 = h_4;
                if (_e300 < HEADS) {
                } else {
                    break;
                }
                {
                    uint _e303 = h_4;
                    float _e305 = total.inner[_e303];
                    uint _e306 = h_4;
                    float _e307 = sum_of(_e306, lane, partials);
                    total.inner[_e303] = _e305 + _e307;
                }
            }
            uint _e312 = tile;
            uint _e314 = tile;
            uint _e316 = tile;
            uint _e320 = tile;
            add_values(sums, metal::max(_e312, begin) - _e314, metal::min(split_end - _e316, WG), table + naga_div(_e320, BLOCK), kv_head_2, lane.index, params, v_cache, tables, weights, _buffer_sizes);
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        }
    }
    uint _e330 = params.v_dim;
    uint n_words_3 = naga_div(_e330, VALUES_PER_WORD);
    bool loop_init_16 = true;
    while(true) {
        if (!loop_init_16) {
            uint _e447 = h_5;
            h_5 = _e447 + 1u;
        }
        loop_init_16 = false;
        uint _e335 = h_5;
        if (_e335 < n_heads) {
        } else {
            break;
        }
        {
            uint _e339 = params.y_offset;
            uint _e342 = params.y_stride;
            uint _e345 = h_5;
            uint _e349 = params.v_dim;
            at = (_e339 + (row * _e342)) + ((first_head + _e345) * _e349);
            uint _e353 = h_5;
            float _e355 = total.inner[_e353];
            divisor = _e355;
            if (SPLIT) {
                uint _e360 = params.n_heads;
                uint _e363 = h_5;
                uint _e367 = params.n_splits;
                uint _e373 = params.v_dim;
                at = (((((row * _e360) + first_head) + _e363) * _e367) + group.z) * (_e373 + 2u);
                divisor = 1.0;
                if (lane.index == 0u) {
                    uint _e382 = at;
                    uint _e385 = params.v_dim;
                    uint _e388 = h_5;
                    float _e390 = total.inner[_e388];
                    y[_e382 + _e385] = _e390;
                    uint _e392 = at;
                    uint _e395 = params.v_dim;
                    uint _e400 = h_5;
                    float _e402 = most.inner[_e400];
                    y[(_e392 + _e395) + 1u] = _e402;
                }
            }
            i_2 = 0u;
            bool loop_init_17 = true;
            while(true) {
                if (!loop_init_17) {
                    uint _e444 = i_2;
                    i_2 = _e444 + 1u;
                }
                loop_init_17 = false;
                uint _e405 = i_2;
                if (_e405 < V_WORDS) {
                } else {
                    break;
                }
                {
                    uint _e408 = i_2;
                    uint word_4 = (_e408 * WG) + lane.index;
                    if (word_4 < n_words_3) {
                        j = 0u;
                        bool loop_init_18 = true;
                        while(true) {
                            if (!loop_init_18) {
                                uint _e441 = j;
                                j = _e441 + 1u;
                            }
                            loop_init_18 = false;
                            uint _e416 = j;
                            if (_e416 < VALUES_PER_WORD) {
                            } else {
                                break;
                            }
                            {
                                uint _e420 = at;
                                uint _e424 = j;
                                uint _e427 = h_5;
                                uint _e430 = i_2;
                                uint _e434 = j;
                                float _e437 = sums.inner[(((_e427 * V_WORDS) + _e430) * VALUES_PER_WORD) + _e434];
                                float _e438 = divisor;
                                y[(_e420 + (word_4 * VALUES_PER_WORD)) + _e424] = _e437 / _e438;
                            }
                        }
                    }
                }
            }
        }
    }
    return;
}
