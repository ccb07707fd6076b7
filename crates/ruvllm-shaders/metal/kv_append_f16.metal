// kv_append_f16, translated by naga from the WGSL of ruvllm-shaders (`cargo xtask codegen metal`); do not edit.
// Never compiled by Apple's compiler here.
// Threads of a threadgroup: 256. Buffers: params 0, k 1, v 2, k_cache 3, v_cache 4, pass_counts 16, rows 17.
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
    uint n_kv_heads;
    uint k_dim;
    uint v_dim;
    uint k_offset;
    uint k_stride;
    uint v_offset;
    uint v_stride;
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
constant uint BLOCK = 16u;
constant uint VALUES_PER_WORD = 2u;

uint pack_kv(
    float a,
    float b
) {
    return as_type<uint>(half2(metal::float2(a, b)));
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
uint naga_mod(uint lhs, uint rhs) {
    return lhs % metal::select(rhs, 1u, rhs == 0u);
}


struct kv_append_f16_Input {
};
[[max_total_threads_per_threadgroup(256)]] kernel void kv_append_f16_(
  uint index [[thread_index_in_threadgroup]]
, metal::uint3 group [[threadgroup_position_in_grid]]
, constant Params& params [[buffer(0)]]
, device type_2 const& k [[buffer(1)]]
, device type_2 const& v [[buffer(2)]]
, device type_3& k_cache [[buffer(3)]]
, device type_3& v_cache [[buffer(4)]]
, constant metal::uint4& pass_counts [[buffer(16)]]
, device type_5 const& rows [[buffer(17)]]
, constant _mslBufferSizes& _buffer_sizes [[buffer(30)]]
) {
    const Lane lane = { index };
    bool local = {};
    uint row = group.y;
    uint _e5 = params.n_kv_heads;
    uint _e8 = params.k_dim;
    uint n_keys = naga_div(_e5 * _e8, VALUES_PER_WORD);
    uint _e14 = params.n_kv_heads;
    uint _e17 = params.v_dim;
    uint n_values = naga_div(_e14 * _e17, VALUES_PER_WORD);
    uint at = (group.x * WG) + lane.index;
    if (!((at >= (n_keys + n_values)))) {
        uint _e34 = params.count;
        uint _e36 = pass_counts[_e34];
        local = row >= _e36;
    } else {
        local = true;
    }
    bool _e39 = local;
    if (_e39) {
        return;
    }
    uint _e43 = rows[row].slot;
    uint block_2 = naga_div(_e43, BLOCK);
    uint _e49 = rows[row].slot;
    uint token_2 = naga_mod(_e49, BLOCK);
    if (at < n_keys) {
        uint _e55 = params.k_dim;
        uint n_words_2 = naga_div(_e55, VALUES_PER_WORD);
        uint _e60 = params.k_offset;
        uint _e63 = params.k_stride;
        uint start = (_e60 + (row * _e63)) + (at * VALUES_PER_WORD);
        float _e71 = k[start];
        float _e78 = k[(start + VALUES_PER_WORD) - 1u];
        uint _e79 = pack_kv(_e71, _e78);
        uint _e83 = k_at(block_2, naga_div(at, n_words_2), token_2, naga_mod(at, n_words_2), params);
        k_cache[_e83] = _e79;
        return;
    } else {
        uint _e87 = params.v_dim;
        uint n_words_3 = naga_div(_e87, VALUES_PER_WORD);
        uint i = at - n_keys;
        uint _e93 = params.v_offset;
        uint _e96 = params.v_stride;
        uint start_1 = (_e93 + (row * _e96)) + (i * VALUES_PER_WORD);
        float _e104 = v[start_1];
        float _e111 = v[(start_1 + VALUES_PER_WORD) - 1u];
        uint _e112 = pack_kv(_e104, _e111);
        uint _e116 = v_at(block_2, naga_div(i, n_words_3), token_2, naga_mod(i, n_words_3), params);
        v_cache[_e116] = _e112;
        return;
    }
}
