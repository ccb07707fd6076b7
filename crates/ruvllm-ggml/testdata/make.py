"""Makes quantize.txt: hashes of blocks by the reference quantisers. Needs llama-cpp-python 0.3.36 and numpy.

The inputs are those of src/quantize/tests.rs: the same generator, float32 operations in the same order.
"""
import ctypes
import pathlib

import llama_cpp
import numpy as np

TYPES = {"F16": 1, "BF16": 30, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12,
         "Q5_K": 13, "Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "MXFP4": 39, "IQ1_S": 19, "IQ1_M": 29, "IQ2_XXS": 16, "IQ2_XS": 17,
         "IQ2_S": 22, "IQ3_XXS": 18, "IQ3_S": 21}
KINDS = ["normal", "uniform", "positive", "sparse", "outlier", "constant", "zero", "huge", "tiny", "minute"]
# Types whose reference converts infinities to integers, which C leaves open, where scales are subnormal.
OPEN = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"}
SUPER = {"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"}
# Types that the reference does not quantise to without importance.
WEIGHTED = {"IQ1_S", "IQ2_XXS", "IQ2_XS"}
f32 = np.float32


def units(seed, n):
    state, out = seed, []
    for _ in range(n):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append((state >> 40) - 2**23)
    return np.array(out, dtype=f32) / f32(2**23)


def values(kind, n):
    u = units(KINDS.index(kind) + 1, 3 * n).reshape(n, 3)
    normal = (u[:, 0] + u[:, 1]) + u[:, 2]
    at = np.arange(n)
    return {
        "normal": normal * f32(0.02),
        "uniform": u[:, 0].copy(),
        "positive": np.abs(normal),
        "sparse": np.where(at % 13 == 5, normal, f32(0)),
        "outlier": np.where(at % 97 == 3, normal * f32(50), normal),
        "constant": np.full(n, f32(0.37)),
        "zero": np.zeros(n, dtype=f32),
        "huge": normal * f32(20000),
        "tiny": normal * f32(1e-7),
        "minute": normal * f32(1e-38),
    }[kind].astype(f32)


def weights(n):
    u = units(99, n)
    return np.where(np.arange(n) % 17 == 4, f32(0), u * u)


def fnv(data):
    h = 0xcbf29ce484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001b3 % 2**64
    return h


lib = ctypes.CDLL(str(pathlib.Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
lib.ggml_quantize_chunk.restype = ctypes.c_size_t
lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]


def quantize(ty, x, w):
    out = np.zeros(4 * len(x), dtype=np.uint8)
    n = lib.ggml_quantize_chunk(TYPES[ty], x.ctypes.data, out.ctypes.data, 0, 1, len(x), w.ctypes.data if w is not None else None)
    return out[:n].tobytes()


def main():
    with open(pathlib.Path(__file__).parent / "quantize.txt", "w") as out:
        for ty in TYPES:
            n = 768 if ty in SUPER else 800
            for kind in KINDS[:-1] if ty in OPEN else KINDS:
                x = values(kind, n)
                for name, w in [("plain", None), ("weighted", weights(n))][ty in WEIGHTED:]:
                    print(ty, kind, name, f"{fnv(quantize(ty, x, w)):016x}", file=out)


if __name__ == "__main__":
    main()
