"""Makes recipes.txt: hashes of files by llama.cpp's quantiser. Needs llama-cpp-python 0.3.36 and numpy.

    cargo run -p ruvllm-convert --example golden_models -- FOLDER && python make.py FOLDER
"""
import ctypes
import pathlib
import struct
import sys

import llama_cpp.llama_cpp as ll
import numpy as np

RECIPES = {"Q2_K": 10, "Q2_K_S": 21, "Q3_K_S": 11, "Q3_K_M": 12, "Q3_K_L": 13, "IQ4_XS": 30, "IQ4_NL": 25, "Q4_0": 2, "Q4_1": 3,
           "Q4_K_S": 14, "Q4_K_M": 15, "MXFP4_MOE": 38, "Q5_0": 8, "Q5_1": 9, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18,
           "Q8_0": 7, "F16": 1, "BF16": 32, "IQ1_S": 24, "IQ1_M": 31, "IQ2_XXS": 19, "IQ2_XS": 20, "IQ2_S": 28, "IQ2_M": 29,
           "IQ3_XXS": 23, "IQ3_XS": 22, "IQ3_S": 26, "IQ3_M": 27}
MODELS = ["dense", "shared", "experts8", "experts4", "odd", "falcon", "layers80"]


def fnv(data):
    h = 0xcbf29ce484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001b3 % 2**64
    return h


def imatrix(path):
    """The means of an importance matrix: a GGUF file of F32 tensors and few keys."""
    data = path.read_bytes()
    at = 24
    n_tensors, n_keys = struct.unpack_from("<QQ", data, 8)

    def string():
        nonlocal at
        (n,) = struct.unpack_from("<Q", data, at)
        at += 8 + n
        return data[at - n:at].decode()

    for _ in range(n_keys):
        string()
        (ty,) = struct.unpack_from("<I", data, at)
        at += 4
        if ty == 4:
            at += 4
        else:
            assert ty == 9
            _, n = struct.unpack_from("<IQ", data, at)
            at += 12
            for _ in range(n):
                string()
    tensors = {}
    for _ in range(n_tensors):
        name = string()
        (n_dims,) = struct.unpack_from("<I", data, at)
        dims = struct.unpack_from(f"<{n_dims}Q", data, at + 4)
        _, offset = struct.unpack_from("<IQ", data, at + 4 + 8 * n_dims)
        at += 4 + 8 * n_dims + 12
        tensors[name] = (dims, offset)
    start = (at + 31) // 32 * 32
    read = lambda name: np.frombuffer(data, "<f4", int(np.prod(tensors[name][0])), start + tensors[name][1])
    means = {}
    for name in tensors:
        if name.endswith(".in_sum2"):
            base = name[:-len(".in_sum2")]
            counts = read(base + ".counts")
            sums = read(name).reshape(len(counts), -1)
            means[base] = np.stack([s / c if c > 0 else np.ones_like(s) for s, c in zip(sums, counts)]).astype(np.float32).ravel()
    return means


def quantize(source, target, recipe, means, imatrix_path):
    params = ll.llama_model_quantize_default_params()
    params.ftype, params.nthread = RECIPES[recipe], 2
    keep = []
    if means is not None:
        data = (ll.llama_model_imatrix_data * (len(means) + 1))()
        for i, (name, values) in enumerate(means.items()):
            keep.append(values)
            data[i].name = name.encode()
            data[i].data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            data[i].size = len(values)
        params.imatrix = data
        over = (ll.llama_model_kv_override * 5)()
        texts = [("file", str(imatrix_path)), ("dataset", "text.txt")]
        for i, (key, value) in enumerate(texts):
            over[i].key, over[i].tag, over[i].value.val_str = b"quantize.imatrix." + key.encode(), 3, value.encode()
        for i, (key, value) in enumerate([("entries_count", len(means)), ("chunks_count", 3)]):
            over[2 + i].key, over[2 + i].tag, over[2 + i].value.val_i64 = b"quantize.imatrix." + key.encode(), 0, value
        params.kv_overrides = over
    return ll.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)) == 0


def main():
    folder = pathlib.Path(sys.argv[1])
    quiet = ll.llama_log_callback(lambda *_: None)
    ll.llama_log_set(quiet, None)
    with open(pathlib.Path(__file__).parent / "recipes.txt", "w") as out:
        for model in MODELS:
            # The path stands in the file: the tests run in the folder.
            path = pathlib.Path(f"{model}.imatrix")
            means = imatrix(folder / path)
            for recipe in RECIPES:
                for name, weights in [("plain", None), ("weighted", means)]:
                    target = folder / f"{model}-{recipe}-{name}.gguf"
                    done = quantize(folder / f"{model}.gguf", target, recipe, weights, path)
                    print(model, recipe, name, f"{fnv(target.read_bytes()):016x}" if done else "refused", file=out)


if __name__ == "__main__":
    main()
