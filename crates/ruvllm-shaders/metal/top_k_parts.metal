// top_k_parts, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 256. Buffers: params 0, x 1, part_ids 2, pass_counts 16.
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
    uint bits
) {
    uint magnitude = bits & 2147483647u;
    if (magnitude > 2139095040u) {
        return 0u;
    }
    if (magnitude == 0u) {
        return 2147483648u;
    }
    return (bits > 2147483647u) ? ~(bits) : (bits | 2147483648u);
}

void put_in_tile(
    uint place,
    uint id,
    uint bits_1,
    threadgroup type_4& tile_keys,
    threadgroup type_4& tile_ids
) {
    uint _e3 = key_of(bits_1);
    tile_keys.inner[place] = _e3;
    tile_ids.inner[place] = (_e3 == 0u) ? NONE : id;
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
    bool local_1 = {};
    bool local_2 = {};
    uint a = tile_keys.inner[first];
    uint b = tile_keys.inner[second];
    if (!((a > b))) {
        if (a == b) {
            uint _e17 = tile_ids.inner[first];
            uint _e20 = tile_ids.inner[second];
            local_2 = _e17 < _e20;
        } else {
            local_2 = false;
        }
        bool _e23 = local_2;
        local_1 = _e23;
    } else {
        local_1 = true;
    }
    bool _e25 = local_1;
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
                                uint id_1 = tile_ids.inner[low];
                                uint _e44 = tile_keys.inner[high];
                                tile_keys.inner[low] = _e44;
                                uint _e49 = tile_ids.inner[high];
                                tile_ids.inner[low] = _e49;
                                tile_keys.inner[high] = key;
                                tile_ids.inner[high] = id_1;
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

struct top_k_partsInput {
};
[[max_total_threads_per_threadgroup(256)]] kernel void top_k_parts(
  uint index [[thread_index_in_threadgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_1 const& x [[buffer(1)]]
, device type_1& part_ids [[buffer(2)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, threadgroup type_4& tile_keys
, threadgroup type_4& tile_ids
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index };
    bool local = {};
    uint n_kept = 0u;
    uint next = {};
    uint i = {};
    uint i_1 = {};
    uint row = group.y;
    uint part = group.x;
    uint _e6 = params.n_parts;
    if (!((part >= _e6))) {
        uint _e14 = params.count;
        uint _e16 = pass_counts[_e14];
        local = row >= _e16;
    } else {
        local = true;
    }
    bool _e19 = local;
    if (_e19) {
        return;
    }
    uint _e23 = params.k_count;
    uint _e25 = pass_counts[_e23];
    uint k = metal::min(_e25, K_MAX);
    uint _e30 = params.x_offset;
    uint _e33 = params.x_stride;
    uint start = _e30 + (row * _e33);
    uint _e40 = params.part_len;
    uint _e44 = params.n;
    uint end = metal::min((part + 1u) * _e40, _e44);
    uint _e50 = params.part_len;
    next = part * _e50;
    while(true) {
        uint _e53 = next;
        if (_e53 < end) {
        } else {
            break;
        }
        {
            uint _e55 = n_kept;
            i = _e55 + lane.index;
            bool loop_init_3 = true;
            while(true) {
                if (!loop_init_3) {
                    uint _e74 = i;
                    i = _e74 + WG;
                }
                loop_init_3 = false;
                uint _e59 = i;
                if (_e59 < TILE) {
                } else {
                    break;
                }
                {
                    uint _e62 = next;
                    uint _e63 = i;
                    uint _e65 = n_kept;
                    uint id_2 = (_e62 + _e63) - _e65;
                    if (id_2 < end) {
                        uint _e68 = i;
                        uint _e72 = x[start + id_2];
                        put_in_tile(_e68, id_2, _e72, tile_keys, tile_ids);
                    } else {
                        uint _e73 = i;
                        put_none_in_tile(_e73, tile_keys, tile_ids);
                    }
                }
            }
            sort_tile(lane.index, tile_keys, tile_ids);
            uint _e78 = next;
            uint _e80 = n_kept;
            next = _e78 + (TILE - _e80);
            n_kept = k;
        }
    }
    i_1 = lane.index;
    bool loop_init_4 = true;
    while(true) {
        if (!loop_init_4) {
            uint _e101 = i_1;
            i_1 = _e101 + WG;
        }
        loop_init_4 = false;
        uint _e85 = i_1;
        if (_e85 < k) {
        } else {
            break;
        }
        {
            uint _e90 = params.n_parts;
            uint _e94 = i_1;
            uint _e98 = i_1;
            uint _e100 = tile_ids.inner[_e98];
            part_ids[(((row * _e90) + part) * k) + _e94] = _e100;
        }
    }
    return;
}
