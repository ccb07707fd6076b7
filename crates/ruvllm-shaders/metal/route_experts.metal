// route_experts, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 64. Buffers: params 0, x 1, choice_bias 2, experts 3, expert_weights 4, pass_counts 16.
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
    uint n_slots;
    uint x_offset;
    uint x_stride;
    uint gating;
    uint n_groups;
    uint n_groups_used;
    float scale;
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
struct type_6 {
    float inner[16];
};
struct Best {
    float value;
    uint index;
};
struct type_8 {
    float inner[1024];
};
struct type_9 {
    float inner[64];
};
struct type_12 {
    uint inner[32];
};
struct type_13 {
    float inner[32];
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
constant uint N_SUMS = 1u;
constant uint N_PARTIALS = 16u;
constant uint N_EXPERTS_MAX = 1024u;
constant uint N_SLOTS_MAX = 32u;
constant uint N_GROUPS_MAX = 64u;
constant float NONE = -300000000000000000000000000000000000000.0;

void put_sum(
    uint slot_2,
    float value_1,
    Lane lane_1,
    threadgroup type_6& partials
) {
    float unnamed = metal::simd_sum(value_1);
    if (lane_1.place == 0u) {
        partials.inner[(slot_2 * N_PARTIALS) + lane_1.subgroup] = unnamed;
        return;
    } else {
        return;
    }
}

void put_max(
    uint slot_3,
    float value_2,
    Lane lane_2,
    threadgroup type_6& partials
) {
    float unnamed_1 = metal::simd_max(value_2);
    if (lane_2.place == 0u) {
        partials.inner[(slot_3 * N_PARTIALS) + lane_2.subgroup] = unnamed_1;
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
    uint slot_4,
    Lane lane_5,
    threadgroup type_6& partials
) {
    float sum_1 = 0.0;
    uint i = 0u;
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e19 = i;
            i = _e19 + 1u;
        }
        loop_init = false;
        uint _e6 = i;
        if (_e6 < lane_5.n_subgroups) {
        } else {
            break;
        }
        {
            float _e9 = sum_1;
            uint _e13 = i;
            float _e16 = partials.inner[(slot_4 * N_PARTIALS) + _e13];
            sum_1 = _e9 + _e16;
        }
    }
    float _e21 = sum_1;
    return _e21;
}

float max_of(
    uint slot_5,
    Lane lane_6,
    threadgroup type_6& partials
) {
    float most_1 = {};
    uint i_1 = 1u;
    float _e6 = partials.inner[slot_5 * N_PARTIALS];
    most_1 = _e6;
    bool loop_init_1 = true;
    while(true) {
        if (!loop_init_1) {
            uint _e23 = i_1;
            i_1 = _e23 + 1u;
        }
        loop_init_1 = false;
        uint _e10 = i_1;
        if (_e10 < lane_6.n_subgroups) {
        } else {
            break;
        }
        {
            float _e13 = most_1;
            uint _e17 = i_1;
            float _e20 = partials.inner[(slot_5 * N_PARTIALS) + _e17];
            most_1 = metal::max(_e13, _e20);
        }
    }
    float _e25 = most_1;
    return _e25;
}

float sigmoid(
    float x
) {
    float e_6 = metal::exp(-(metal::abs(x)));
    return ((x >= 0.0) ? 1.0 : e_6) / (1.0 + e_6);
}

float silu(
    float x_1
) {
    float _e1 = sigmoid(x_1);
    return x_1 * _e1;
}

float gelu_tanh(
    float x_2
) {
    float c = metal::clamp(x_2, -12.0, 12.0);
    float _e11 = sigmoid(1.5957692 * (c + (((0.044715 * c) * c) * c)));
    return x_2 * _e11;
}

float gelu_erf(
    float x_3
) {
    float q = -0.020628711;
    float z = metal::min(metal::abs(x_3), 15.0);
    float t = 1.0 / (1.0 + (0.3 * z));
    float _e12 = q;
    q = (_e12 * t) + 0.11246506;
    float _e16 = q;
    q = (_e16 * t) - 0.2282854;
    float _e20 = q;
    q = (_e20 * t) + 0.19188409;
    float _e24 = q;
    q = (_e24 * t) - 0.07950979;
    float _e28 = q;
    q = (_e28 * t) + 0.09620524;
    float _e32 = q;
    q = (_e32 * t) + 0.07837212;
    float _e36 = q;
    q = (_e36 * t) + 0.11023937;
    float _e40 = q;
    q = (_e40 * t) + 0.11957132;
    float _e44 = q;
    q = (_e44 * t) + 0.11968672;
    float _e56 = q;
    return metal::max(x_3, 0.0) - (((z * metal::exp((-0.5 * z) * z)) * t) * _e56);
}

float relu(
    float x_4
) {
    return metal::max(x_4, 0.0);
}

float relu_sqr(
    float x_5
) {
    float _e1 = relu(x_5);
    float _e2 = relu(x_5);
    return _e1 * _e2;
}

Best best_of(
    float value_3,
    uint index_1,
    Lane lane_7,
    threadgroup type_6& partials,
    threadgroup metal::atomic_uint& best_index
) {
    if (lane_7.index == 0u) {
        metal::atomic_store_explicit(&best_index, 4294967295u, metal::memory_order_relaxed);
    }
    put_max(0u, value_3, lane_7, partials);
    finish_max(lane_7);
    float _e10 = max_of(0u, lane_7, partials);
    if (value_3 == _e10) {
        uint _e13 = metal::atomic_fetch_min_explicit(&best_index, index_1, metal::memory_order_relaxed);
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    uint found = metal::atomic_load_explicit(&best_index, metal::memory_order_relaxed);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    return Best {_e10, found};
}

void score(
    uint start,
    Lane lane_8,
    constant Params& params,
    device type_2 const& x_6,
    device type_2 const& choice_bias,
    threadgroup type_6& partials,
    threadgroup type_8& scores,
    threadgroup type_8& choices,
    constant _mslBufferSizes& _buffer_sizes
) {
    float most_2 = NONE;
    uint e_1 = {};
    float sum_2 = 0.0;
    uint e_2 = {};
    uint e_3 = {};
    float value_4 = {};
    e_1 = lane_8.index;
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e18 = e_1;
            e_1 = _e18 + WG;
        }
        loop_init_2 = false;
        uint _e6 = e_1;
        uint _e9 = params.n;
        if (_e6 < _e9) {
        } else {
            break;
        }
        {
            float _e11 = most_2;
            uint _e13 = e_1;
            float _e16 = x_6[start + _e13];
            most_2 = metal::max(_e11, _e16);
        }
    }
    float _e22 = most_2;
    put_max(0u, _e22, lane_8, partials);
    finish_max(lane_8);
    float _e24 = max_of(0u, lane_8, partials);
    most_2 = _e24;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    e_2 = lane_8.index;
    bool loop_init_3 = true;
    while(true) {
        if (!loop_init_3) {
            uint _e44 = e_2;
            e_2 = _e44 + WG;
        }
        loop_init_3 = false;
        uint _e29 = e_2;
        uint _e32 = params.n;
        if (_e29 < _e32) {
        } else {
            break;
        }
        {
            float _e34 = sum_2;
            uint _e36 = e_2;
            float _e39 = x_6[start + _e36];
            float _e40 = most_2;
            sum_2 = _e34 + metal::exp(_e39 - _e40);
        }
    }
    float _e48 = sum_2;
    put_sum(0u, _e48, lane_8, partials);
    finish_sums(lane_8);
    float _e50 = sum_of(0u, lane_8, partials);
    sum_2 = _e50;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    e_3 = lane_8.index;
    bool loop_init_4 = true;
    while(true) {
        if (!loop_init_4) {
            uint _e103 = e_3;
            e_3 = _e103 + WG;
        }
        loop_init_4 = false;
        uint _e53 = e_3;
        uint _e56 = params.n;
        if (_e53 < _e56) {
        } else {
            break;
        }
        {
            uint _e59 = e_3;
            float _e62 = x_6[start + _e59];
            value_4 = _e62;
            uint _e66 = params.gating;
            if (_e66 == 0u) {
                float _e69 = value_4;
                float _e70 = most_2;
                float _e73 = sum_2;
                value_4 = metal::exp(_e69 - _e70) / _e73;
            } else {
                uint _e77 = params.gating;
                if (_e77 == 2u) {
                    float _e80 = value_4;
                    float _e81 = sigmoid(_e80);
                    value_4 = _e81;
                }
            }
            uint _e83 = e_3;
            float _e85 = value_4;
            scores.inner[_e83] = _e85;
            uint _e88 = params.flags;
            if ((_e88 & HAS_BIAS) != 0u) {
                float _e93 = value_4;
                uint _e95 = e_3;
                float _e97 = choice_bias[_e95];
                value_4 = _e93 + _e97;
            }
            uint _e100 = e_3;
            float _e102 = value_4;
            choices.inner[_e100] = _e102;
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    return;
}

uint naga_div(uint lhs, uint rhs) {
    return lhs / metal::select(rhs, 1u, rhs == 0u);
}

void keep_best_groups(
    Lane lane_9,
    constant Params& params,
    threadgroup type_8& choices,
    threadgroup type_9& groups
) {
    uint g = {};
    float first = {};
    float second = {};
    uint e_4 = {};
    uint e_5 = {};
    uint n_better = {};
    uint other = {};
    bool local_1 = {};
    bool local_2 = {};
    uint _e3 = params.n;
    uint _e6 = params.n_groups;
    uint group_len = naga_div(_e3, _e6);
    g = lane_9.index;
    bool loop_init_5 = true;
    while(true) {
        if (!loop_init_5) {
            uint _e55 = g;
            g = _e55 + WG;
        }
        loop_init_5 = false;
        uint _e10 = g;
        uint _e13 = params.n_groups;
        if (_e10 < _e13) {
        } else {
            break;
        }
        {
            first = NONE;
            second = NONE;
            uint _e19 = g;
            e_4 = _e19 * group_len;
            bool loop_init_6 = true;
            while(true) {
                if (!loop_init_6) {
                    uint _e43 = e_4;
                    e_4 = _e43 + 1u;
                }
                loop_init_6 = false;
                uint _e22 = e_4;
                uint _e23 = g;
                if (_e22 < ((_e23 + 1u) * group_len)) {
                } else {
                    break;
                }
                {
                    float _e28 = second;
                    float _e29 = first;
                    uint _e31 = e_4;
                    float _e33 = choices.inner[_e31];
                    second = metal::max(_e28, metal::min(_e29, _e33));
                    float _e36 = first;
                    uint _e38 = e_4;
                    float _e40 = choices.inner[_e38];
                    first = metal::max(_e36, _e40);
                }
            }
            uint _e46 = g;
            float _e48 = first;
            float _e49 = second;
            groups.inner[_e46] = _e48 + ((group_len < 2u) ? 0.0 : _e49);
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    e_5 = lane_9.index;
    bool loop_init_7 = true;
    while(true) {
        if (!loop_init_7) {
            uint _e120 = e_5;
            e_5 = _e120 + WG;
        }
        loop_init_7 = false;
        uint _e60 = e_5;
        uint _e63 = params.n;
        if (_e60 < _e63) {
        } else {
            break;
        }
        {
            uint _e65 = e_5;
            uint g_1 = naga_div(_e65, group_len);
            n_better = 0u;
            other = 0u;
            bool loop_init_8 = true;
            while(true) {
                if (!loop_init_8) {
                    uint _e109 = other;
                    other = _e109 + 1u;
                }
                loop_init_8 = false;
                uint _e71 = other;
                uint _e74 = params.n_groups;
                if (_e71 < _e74) {
                } else {
                    break;
                }
                {
                    uint _e77 = other;
                    float _e79 = groups.inner[_e77];
                    float _e82 = groups.inner[g_1];
                    if (!((_e79 > _e82))) {
                        uint _e88 = other;
                        float _e90 = groups.inner[_e88];
                        float _e93 = groups.inner[g_1];
                        if (_e90 == _e93) {
                            uint _e97 = other;
                            local_2 = _e97 < g_1;
                        } else {
                            local_2 = false;
                        }
                        bool _e100 = local_2;
                        local_1 = _e100;
                    } else {
                        local_1 = true;
                    }
                    bool is_better = local_1;
                    uint _e103 = n_better;
                    n_better = _e103 + (is_better ? 1u : 0u);
                }
            }
            uint _e111 = n_better;
            uint _e114 = params.n_groups_used;
            if (_e111 >= _e114) {
                uint _e117 = e_5;
                choices.inner[_e117] = NONE;
            }
        }
    }
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    return;
}

struct route_expertsInput {
};
[[max_total_threads_per_threadgroup(64)]] kernel void route_experts(
  uint index_2 [[thread_index_in_threadgroup]]
, uint subgroup [[simdgroup_index_in_threadgroup]]
, uint n_subgroups [[simdgroups_per_threadgroup]]
, uint place [[thread_index_in_simdgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_2 const& x_6 [[buffer(1)]]
, device type_2 const& choice_bias [[buffer(2)]]
, device type_3& experts [[buffer(3)]]
, device type_2& expert_weights [[buffer(4)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, threadgroup type_6& partials
, threadgroup metal::atomic_uint& best_index
, threadgroup type_8& scores
, threadgroup type_8& choices
, threadgroup type_9& groups
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index_2, subgroup, n_subgroups, place };
    type_12 chosen = {};
    type_13 weights = {};
    float sum = 0.0;
    float most = 0.0;
    uint slot = 0u;
    float value = {};
    uint index = {};
    uint e = {};
    bool local = {};
    uint slot_1 = 0u;
    uint row = group.y;
    uint _e6 = params.count;
    uint _e8 = pass_counts[_e6];
    if (row >= _e8) {
        return;
    }
    uint _e12 = params.x_offset;
    uint _e15 = params.x_stride;
    score(_e12 + (row * _e15), lane, params, x_6, choice_bias, partials, scores, choices, _buffer_sizes);
    uint _e20 = params.n_groups;
    if (_e20 > 1u) {
        keep_best_groups(lane, params, choices, groups);
    }
    bool loop_init_9 = true;
    while(true) {
        if (!loop_init_9) {
            uint _e111 = slot;
            slot = _e111 + 1u;
        }
        loop_init_9 = false;
        uint _e31 = slot;
        uint _e34 = params.n_slots;
        if (_e31 < _e34) {
        } else {
            break;
        }
        {
            value = NONE;
            index = 4294967295u;
            e = lane.index;
            bool loop_init_10 = true;
            while(true) {
                if (!loop_init_10) {
                    uint _e58 = e;
                    e = _e58 + WG;
                }
                loop_init_10 = false;
                uint _e42 = e;
                uint _e45 = params.n;
                if (_e42 < _e45) {
                } else {
                    break;
                }
                {
                    uint _e48 = e;
                    float _e50 = choices.inner[_e48];
                    float _e51 = value;
                    if (_e50 > _e51) {
                        uint _e54 = e;
                        float _e56 = choices.inner[_e54];
                        value = _e56;
                        uint _e57 = e;
                        index = _e57;
                    }
                }
            }
            float _e61 = value;
            uint _e62 = index;
            Best _e63 = best_of(_e61, _e62, lane, partials, best_index);
            uint _e67 = params.n;
            uint expert = metal::min(_e63.index, _e67 - 1u);
            uint _e71 = slot;
            chosen.inner[_e71] = expert;
            uint _e73 = slot;
            float _e77 = scores.inner[expert];
            weights.inner[_e73] = _e77;
            uint _e80 = params.gating;
            if (_e80 == 1u) {
                float _e83 = most;
                uint _e84 = slot;
                float _e86 = weights.inner[_e84];
                uint _e87 = slot;
                most = (_e87 == 0u) ? _e86 : _e83;
                uint _e91 = slot;
                uint _e93 = slot;
                float _e95 = weights.inner[_e93];
                float _e96 = most;
                weights.inner[_e91] = metal::exp(_e95 - _e96);
            }
            float _e99 = sum;
            uint _e100 = slot;
            float _e102 = weights.inner[_e100];
            sum = _e99 + _e102;
            if (lane.index == 0u) {
                choices.inner[expert] = NONE;
            }
            metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        }
    }
    uint _e115 = params.gating;
    if (!((_e115 == 1u))) {
        uint _e123 = params.flags;
        local = (_e123 & NORMALIZE) != 0u;
    } else {
        local = true;
    }
    bool is_normal = local;
    float _e132 = params.scale;
    float _e133 = sum;
    float scale = _e132 / (is_normal ? metal::max(_e133, 0.00000000000000000001) : 1.0);
    if (lane.index == 0u) {
        bool loop_init_11 = true;
        while(true) {
            if (!loop_init_11) {
                uint _e173 = slot_1;
                slot_1 = _e173 + 1u;
            }
            loop_init_11 = false;
            uint _e144 = slot_1;
            uint _e147 = params.n_slots;
            if (_e144 < _e147) {
            } else {
                break;
            }
            {
                uint _e152 = params.n_slots;
                uint _e154 = slot_1;
                uint _e157 = slot_1;
                uint _e159 = chosen.inner[_e157];
                experts[(row * _e152) + _e154] = _e159;
                uint _e163 = params.n_slots;
                uint _e165 = slot_1;
                uint _e168 = slot_1;
                float _e170 = weights.inner[_e168];
                expert_weights[(row * _e163) + _e165] = _e170 * scale;
            }
        }
        return;
    } else {
        return;
    }
}
