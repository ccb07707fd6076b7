#!/usr/bin/env python3
"""Writes dequant.bin: blocks of every GGML type and what gguf-py makes of them.

Needs `pip install gguf numpy`. One record a type, all little-endian:
    u32 type id, u32 number of blocks, the blocks, f32 for each of their values (NaN: any)
Blocks: four with random bytes and scales of ordinary size, two of random bytes, then all bytes 0x00, 0xff, 0x7f, 0x80,
and all 0xff but for scales of 1.5. The scalar types have values of interest instead.

gguf-py has no Q8_1 and Q8_K and no integers: the first two are `d * qs` as ggml defines them, the others numpy casts.
With `--ggml libggml-base.so` every type is also computed by ggml's own dequantize_row_* and compared.
"""

import ctypes
import struct
import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize

# type: (values and bytes of a block, offsets of its f16 scales)
BLOCKS = {
    T.Q4_0: (32, 18, [0]), T.Q4_1: (32, 20, [0, 2]), T.Q5_0: (32, 22, [0]), T.Q5_1: (32, 24, [0, 2]),
    T.Q8_0: (32, 34, [0]), T.Q8_1: (32, 36, [0, 2]),
    T.Q2_K: (256, 84, [80, 82]), T.Q3_K: (256, 110, [108]), T.Q4_K: (256, 144, [0, 2]), T.Q5_K: (256, 176, [0, 2]),
    T.Q6_K: (256, 210, [208]), T.Q8_K: (256, 292, []),
    T.IQ2_XXS: (256, 66, [0]), T.IQ2_XS: (256, 74, [0]), T.IQ2_S: (256, 82, [0]), T.IQ3_XXS: (256, 98, [0]),
    T.IQ3_S: (256, 110, [0]), T.IQ1_S: (256, 50, [0]), T.IQ1_M: (256, 56, []), T.IQ4_NL: (32, 18, [0]),
    T.IQ4_XS: (256, 136, [0]), T.TQ1_0: (256, 54, [52]), T.TQ2_0: (256, 66, [64]), T.MXFP4: (32, 17, []),
}
SCALARS = {
    T.F32: np.float32, T.F16: np.float16, T.BF16: np.uint16, T.F64: np.float64,
    T.I8: np.int8, T.I16: np.int16, T.I32: np.int32, T.I64: np.int64,
}
GGML = {
    T.Q4_0: "q4_0", T.Q4_1: "q4_1", T.Q5_0: "q5_0", T.Q5_1: "q5_1", T.Q8_0: "q8_0", T.Q2_K: "q2_K", T.Q3_K: "q3_K",
    T.Q4_K: "q4_K", T.Q5_K: "q5_K", T.Q6_K: "q6_K", T.Q8_K: "q8_K", T.IQ2_XXS: "iq2_xxs", T.IQ2_XS: "iq2_xs",
    T.IQ2_S: "iq2_s", T.IQ3_XXS: "iq3_xxs", T.IQ3_S: "iq3_s", T.IQ1_S: "iq1_s", T.IQ1_M: "iq1_m", T.IQ4_NL: "iq4_nl",
    T.IQ4_XS: "iq4_xs", T.TQ1_0: "tq1_0", T.TQ2_0: "tq2_0", T.MXFP4: "mxfp4",
}


def set_scales(ty: T, blocks: np.ndarray, rng: np.random.Generator) -> None:
    """Gives blocks [n, bytes] scales of ordinary size, either sign."""
    n = len(blocks)
    scale = lambda: (rng.uniform(0.001, 2, n) * rng.choice([-1, 1], n)).astype("<f2")
    for at in BLOCKS[ty][2]:
        blocks[:, at : at + 2] = scale().view(np.uint8).reshape(n, 2)
    if ty == T.Q8_K:
        blocks[:, :4] = scale().astype("<f4").view(np.uint8).reshape(n, 4)
    if ty == T.IQ1_M:  # the scale is in the top nibbles of four u16
        words = blocks[:, 48:56].copy().view("<u2")
        bits = scale().view("<u2")
        for k in range(4):
            words[:, k] = words[:, k] & 0x0FFF | (bits >> (4 * k) & 15) << 12
        blocks[:, 48:56] = words.view(np.uint8)
    if ty == T.MXFP4:
        blocks[:, 0] = rng.integers(118, 136, n)


def block_bytes(ty: T, rng: np.random.Generator) -> np.ndarray:
    size = BLOCKS[ty][1]
    ordinary = rng.integers(0, 256, (4, size), dtype=np.uint8)
    set_scales(ty, ordinary, rng)
    rest = [rng.integers(0, 256, (2, size), dtype=np.uint8)]
    rest += [np.full((1, size), byte, dtype=np.uint8) for byte in (0x00, 0xFF, 0x7F, 0x80, 0xFF)]
    set_scales(ty, rest[-1], rng)
    return np.concatenate([ordinary, *rest])


def scalar_bytes(ty: T, rng: np.random.Generator) -> np.ndarray:
    dtype = SCALARS[ty]
    if ty == T.F16 or ty == T.BF16:
        special = [0, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7F80, 0x7FFF, 0x7F7F]
        bits = [sign | x for x in special for sign in (0, 0x8000)]
        return np.array([*bits, *rng.integers(0, 65536, 40)], dtype="<u2").view(np.uint8)
    if ty == T.F32 or ty == T.F64:
        special = [0.0, -0.0, 1.0, 1 + 2**-24, 1 + 3 * 2**-24, 1e-45, 1e-40, 3.4028235e38, -np.inf, np.nan, np.pi]
        return np.array([*special, *rng.normal(size=21)], dtype=dtype).view(np.uint8)
    info = np.iinfo(dtype)
    special = np.array([0, -1, 1, info.min, info.max, info.max - 1, info.max // 3], dtype=dtype)
    return np.concatenate([special, rng.integers(info.min, info.max, 25, dtype=dtype)]).view(np.uint8)


def expected(ty: T, data: np.ndarray) -> np.ndarray:
    if ty in (T.F64, T.I8, T.I16, T.I32, T.I64):
        return data.view(SCALARS[ty]).astype("<f4")
    if ty == T.Q8_1:
        return data[:, :2].copy().view("<f2").astype("<f4") * data[:, 4:].view(np.int8).astype("<f4")
    if ty == T.Q8_K:
        return data[:, :4].copy().view("<f4") * data[:, 4:260].view(np.int8).astype("<f4")
    return dequantize(data, ty)


def compare_with_ggml(lib: ctypes.CDLL, ty: T, data: np.ndarray, ours: np.ndarray) -> None:
    theirs = np.empty(ours.size, dtype=np.float32)
    getattr(lib, "dequantize_row_" + GGML[ty])(
        ctypes.c_void_p(data.ctypes.data), ctypes.c_void_p(theirs.ctypes.data), ctypes.c_int64(ours.size)
    )
    ours = ours.ravel()
    same = (ours.view(np.uint32) == theirs.view(np.uint32)) | (np.isnan(ours) & np.isnan(theirs))
    print(f"{ty.name:8} {ours.size:5} values, {np.count_nonzero(~same)} differ from ggml", file=sys.stderr)


def main() -> None:
    np.seterr(all="ignore")
    rng = np.random.default_rng(20240607)
    lib = ctypes.CDLL(sys.argv[2]) if sys.argv[1:2] == ["--ggml"] else None
    with open(Path(__file__).with_name("dequant.bin"), "wb") as out:
        for ty in sorted([*SCALARS, *BLOCKS]):
            data = block_bytes(ty, rng) if ty in BLOCKS else scalar_bytes(ty, rng)
            values = np.ascontiguousarray(expected(ty, data), dtype="<f4")
            n_blocks = values.size // (BLOCKS[ty][0] if ty in BLOCKS else 1)
            out.write(struct.pack("<II", ty, n_blocks) + data.tobytes() + values.tobytes())
            if lib and ty in GGML:
                compare_with_ggml(lib, ty, np.ascontiguousarray(data), values)


main()
