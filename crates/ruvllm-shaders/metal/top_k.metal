// top_k, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 256. Buffers: params 0, x 1, ids 2, values 3, pass_counts 16.
// language: metal2.3
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

struct _mslBufferSizes {
    uint size1;
    uint size2;
    uint size3;
    uint size5;
    uint size6;
};

struct Params {
    uint n;
    uint k;
    uint x_offset;
    uint x_stride;
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
typedef uint type_3[1];
typedef RowRecord type_5[1];
struct Lane {
    uint index;
    uint subgroup;
    uint n_subgroups;
    uint place;
};
struct type_6 {
    float inner[64];
};
struct Best {
    float value;
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
constant uint WG = 256u;
constant uint N_SUMS = 1u;
constant uint N_PARTIALS = 64u;

void put_sum(
    uint slot,
    float value_1,
    Lane lane_1,
    threadgroup type_6& partials
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
    threadgroup type_6& partials
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
    threadgroup type_6& partials
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
    threadgroup type_6& partials
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

struct top_kInput {
};
[[max_total_threads_per_threadgroup(256)]] kernel void top_k(
  uint index_2 [[thread_index_in_threadgroup]]
, uint subgroup [[simdgroup_index_in_threadgroup]]
, uint n_subgroups [[simdgroups_per_threadgroup]]
, uint place [[thread_index_in_simdgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_2 const& x [[buffer(1)]]
, device type_3& ids [[buffer(2)]]
, device type_2& values [[buffer(3)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, threadgroup type_6& partials
, threadgroup metal::atomic_uint& best_index
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index_2, subgroup, n_subgroups, place };
    Best last = Best {340000000000000000000000000000000000000.0, 4294967295u};
    uint i = 0u;
    float value = {};
    uint index = {};
    uint j = {};
    bool local = {};
    bool local_1 = {};
    bool local_2 = {};
    bool local_3 = {};
    bool local_4 = {};
    uint row = group.y;
    uint _e6 = params.count;
    uint _e8 = pass_counts[_e6];
    if (row >= _e8) {
        return;
    }
    uint _e12 = params.x_offset;
    uint _e15 = params.x_stride;
    uint start = _e12 + (row * _e15);
    bool loop_init_2 = true;
    while(true) {
        if (!loop_init_2) {
            uint _e117 = i;
            i = _e117 + 1u;
        }
        loop_init_2 = false;
        uint _e24 = i;
        uint _e27 = params.k;
        if (_e24 < _e27) {
        } else {
            break;
        }
        {
            value = -340000000000000000000000000000000000000.0;
            index = 4294967295u;
            j = lane.index;
            bool loop_init_3 = true;
            while(true) {
                if (!loop_init_3) {
                    uint _e87 = j;
                    j = _e87 + WG;
                }
                loop_init_3 = false;
                uint _e35 = j;
                uint _e38 = params.n;
                if (_e35 < _e38) {
                } else {
                    break;
                }
                {
                    uint _e41 = j;
                    float candidate = x[start + _e41];
                    uint _e45 = i;
                    if (!((_e45 == 0u))) {
                        float _e52 = last.value;
                        local = candidate < _e52;
                    } else {
                        local = true;
                    }
                    bool _e55 = local;
                    if (!(_e55)) {
                        float _e60 = last.value;
                        if (candidate == _e60) {
                            uint _e64 = j;
                            uint _e66 = last.index;
                            local_2 = _e64 > _e66;
                        } else {
                            local_2 = false;
                        }
                        bool _e69 = local_2;
                        local_1 = _e69;
                    } else {
                        local_1 = true;
                    }
                    bool is_left = local_1;
                    if (is_left) {
                        float _e74 = value;
                        if (!((candidate > _e74))) {
                            uint _e79 = index;
                            local_4 = _e79 == 4294967295u;
                        } else {
                            local_4 = true;
                        }
                        bool _e83 = local_4;
                        local_3 = _e83;
                    } else {
                        local_3 = false;
                    }
                    bool _e85 = local_3;
                    if (_e85) {
                        value = candidate;
                        uint _e86 = j;
                        index = _e86;
                    }
                }
            }
            float _e90 = value;
            uint _e91 = index;
            Best _e92 = best_of(_e90, _e91, lane, partials, best_index);
            last = _e92;
            if (lane.index == 0u) {
                uint _e99 = params.k;
                uint _e101 = i;
                uint _e105 = last.index;
                ids[(row * _e99) + _e101] = _e105;
                uint _e109 = params.k;
                uint _e111 = i;
                float _e115 = last.value;
                values[(row * _e109) + _e111] = _e115;
            }
        }
    }
    return;
}
