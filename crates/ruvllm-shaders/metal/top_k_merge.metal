// top_k_merge, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 256. Buffers: params 0, x 1, part_ids 2, pairs 3, pass_counts 16.
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
    uint part_len;
    uint n_parts;
    uint x_offset;
    uint x_stride;
    uint count;
    uint k_count;
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
typedef RowRecord type_3[1];
struct Lane {
    uint index;
};
struct type_4 {
    uint inner[1024];
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
constant uint K_MAX = 128u;
constant uint TILE = 1024u;
constant uint NONE = 4294967295u;

uint key_of(
    uint bits_1
) {
    uint magnitude = bits_1 & 2147483647u;
    if (magnitude > 2139095040u) {
        return 0u;
    }
    if (magnitude == 0u) {
        return 2147483648u;
    }
    return (bits_1 > 2147483647u) ? ~(bits_1) : (bits_1 | 2147483648u);
}

void put_in_tile(
    uint place,
    uint id_1,
    uint bits_2,
    threadgroup type_4& tile_keys,
    threadgroup type_4& tile_ids
) {
    uint _e3 = key_of(bits_2);
    tile_keys.inner[place] = _e3;
    tile_ids.inner[place] = (_e3 == 0u) ? NONE : id_1;
    return;
}

void put_none_in_tile(
    uint place_1,
    threadgroup type_4& tile_keys,
    threadgroup type_4& tile_ids
) {
    tile_keys.inner[place_1] = 0u;
    tile_ids.inner[place_1] = NONE;
    return;
}

bool comes_before(
    uint first,
    uint second,
    threadgroup type_4& tile_keys,
    threadgroup type_4& tile_ids
) {
    bool local = {};
    bool local_1 = {};
    uint a = tile_keys.inner[first];
    uint b = tile_keys.inner[second];
    if (!((a > b))) {
        if (a == b) {
            uint _e17 = tile_ids.inner[first];
            uint _e20 = tile_ids.inner[second];
            local_1 = _e17 < _e20;
        } else {
            local_1 = false;
        }
        bool _e23 = local_1;
        local = _e23;
    } else {
        local = true;
    }
    bool _e25 = local;
    return _e25;
}

uint naga_div(uint lhs, uint rhs) {
    return lhs / metal::select(rhs, 1u, rhs == 0u);
}

void sort_tile(
    uint lane_1,
    threadgroup type_4& tile_keys,
    threadgroup type_4& tile_ids
) {
    uint run = 2u;
    uint apart = {};
    uint i_2 = {};
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    bool loop_init = true;
    while(true) {
        if (!loop_init) {
            uint _e60 = run;
            run = _e60 * 2u;
        }
        loop_init = false;
        uint _e3 = run;
        if (_e3 <= TILE) {
        } else {
            break;
        }
        {
            uint _e6 = run;
            apart = naga_div(_e6, 2u);
            bool loop_init_1 = true;
            while(true) {
                if (!loop_init_1) {
                    uint _e57 = apart;
                    apart = naga_div(_e57, 2u);
                }
                loop_init_1 = false;
                uint _e10 = apart;
                if (_e10 > 0u) {
                } else {
                    break;
                }
                {
                    i_2 = lane_1;
                    bool loop_init_2 = true;
                    while(true) {
                        if (!loop_init_2) {
                            uint _e54 = i_2;
                            i_2 = _e54 + WG;
                        }
                        loop_init_2 = false;
                        uint _e14 = i_2;
                        if (_e14 < 512u) {
                        } else {
                            break;
                        }
                        {
                            uint _e18 = i_2;
                            uint _e20 = i_2;
                            uint _e21 = apart;
                            uint low = (2u * _e18) - (_e20 & (_e21 - 1u));
                            uint _e26 = apart;
                            uint high = low + _e26;
                            uint _e28 = run;
                            bool goes_down = (low & _e28) == 0u;
                            bool _e32 = comes_before(high, low, tile_keys, tile_ids);
                            if (_e32 == goes_down) {
                                uint key = tile_keys.inner[low];
                                uint id_2 = tile_ids.inner[low];
                                uint _e44 = tile_keys.inner[high];
                                tile_keys.inner[low] = _e44;
                                uint _e49 = tile_ids.inner[high];
                                tile_ids.inner[low] = _e49;
                                tile_keys.inner[high] = key;
                                tile_ids.inner[high] = id_2;
                            }
                        }
                    }
                    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
                }
            }
        }
    }
    return;
}

struct top_k_mergeInput {
};
[[max_total_threads_per_threadgroup(256)]] kernel void top_k_merge(
  uint index [[thread_index_in_threadgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_1 const& x [[buffer(1)]]
, device type_1 const& part_ids [[buffer(2)]]
, device type_1& pairs [[buffer(3)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, threadgroup type_4& tile_keys
, threadgroup type_4& tile_ids
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index };
    uint n_kept = 0u;
    uint next = 0u;
    uint i = {};
    uint id = {};
    uint i_1 = {};
    uint bits = {};
    uint row = group.y;
    uint _e6 = params.count;
    uint _e8 = pass_counts[_e6];
    if (row >= _e8) {
        return;
    }
    uint _e13 = params.k_count;
    uint _e15 = pass_counts[_e13];
    uint k = metal::min(_e15, K_MAX);
    uint _e20 = params.x_offset;
    uint _e23 = params.x_stride;
    uint start = _e20 + (row * _e23);
    uint _e28 = params.n_parts;
    uint n_found = _e28 * k;
    uint first_1 = row * n_found;
    while(true) {
        uint _e35 = next;
        if (_e35 < n_found) {
        } else {
            break;
        }
        {
            uint _e37 = n_kept;
            i = _e37 + lane.index;
            bool loop_init_3 = true;
            while(true) {
                if (!loop_init_3) {
                    uint _e69 = i;
                    i = _e69 + WG;
                }
                loop_init_3 = false;
                uint _e41 = i;
                if (_e41 < TILE) {
                } else {
                    break;
                }
                {
                    uint _e44 = next;
                    uint _e45 = i;
                    uint _e47 = n_kept;
                    uint at = (_e44 + _e45) - _e47;
                    id = NONE;
                    if (at < n_found) {
                        uint _e55 = part_ids[first_1 + at];
                        id = _e55;
                    }
                    uint _e56 = id;
                    uint _e59 = params.n;
                    if (_e56 < _e59) {
                        uint _e61 = i;
                        uint _e62 = id;
                        uint _e64 = id;
                        uint _e67 = x[start + _e64];
                        put_in_tile(_e61, _e62, _e67, tile_keys, tile_ids);
                    } else {
                        uint _e68 = i;
                        put_none_in_tile(_e68, tile_keys, tile_ids);
                    }
                }
            }
            sort_tile(lane.index, tile_keys, tile_ids);
            uint _e73 = next;
            uint _e75 = n_kept;
            next = _e73 + (TILE - _e75);
            n_kept = k;
        }
    }
    i_1 = lane.index;
    bool loop_init_4 = true;
    while(true) {
        if (!loop_init_4) {
            uint _e113 = i_1;
            i_1 = _e113 + WG;
        }
        loop_init_4 = false;
        uint _e80 = i_1;
        if (_e80 < k) {
        } else {
            break;
        }
        {
            uint _e83 = i_1;
            uint id_3 = tile_ids.inner[_e83];
            bits = 4286578688u;
            uint _e90 = params.n;
            if (id_3 < _e90) {
                uint _e95 = x[start + id_3];
                bits = _e95;
            }
            uint _e99 = i_1;
            pairs[2u * ((row * k) + _e99)] = id_3;
            uint _e106 = i_1;
            uint _e112 = bits;
            pairs[(2u * ((row * k) + _e106)) + 1u] = _e112;
        }
    }
    return;
}
