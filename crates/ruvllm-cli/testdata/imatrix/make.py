"""Computes importance matrices with llama.cpp's own forward pass, by the rules of its llama-imatrix. Needs llama-cpp-python 0.3.36
and gguf.

    python make.py MODEL.gguf TEXT N_CTX OUT.gguf [N_CHUNKS]
"""
import ctypes
import pathlib
import sys

import gguf
import llama_cpp.llama_cpp as ll
import numpy as np


class Tensor(ctypes.Structure):
    """struct ggml_tensor."""


Tensor._fields_ = [
    ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(Tensor) * 10), ("view_src", ctypes.c_void_p), ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64), ("extra", ctypes.c_void_p), ("padding", ctypes.c_char * 8),
]

base = ctypes.CDLL(pathlib.Path(ll.__file__).parent / "lib" / "libggml-base.so")
base.ggml_op_name.restype = ctypes.c_char_p
sums, counts = {}, {}


def values(tensor, dtype):
    """The values of a tensor in memory, in the order of its strides: [ne3, ne2, ne1, ne0]."""
    size = sum((n - 1) * step for n, step in zip(tensor.ne, tensor.nb)) + np.dtype(dtype).itemsize
    data = (ctypes.c_char * size).from_address(tensor.data)
    return np.lib.stride_tricks.as_strided(np.frombuffer(data, dtype, 1), tuple(tensor.ne)[::-1], tuple(tensor.nb)[::-1])


@ll.ggml_backend_sched_eval_callback
def observe(pointer, ask, _):
    tensor = ctypes.cast(pointer, ctypes.POINTER(Tensor)).contents
    op = base.ggml_op_name(tensor.op)
    if op not in (b"MUL_MAT", b"MUL_MAT_ID"):
        return not ask
    weights, x = tensor.src[0].contents, tensor.src[1].contents
    name = weights.name.decode()
    if op == b"MUL_MAT" and (x.ne[1] < 16 or x.type != 0 or not name.startswith("blk.")):
        return not ask
    if ask:
        return True
    rows = values(x, "<f4")
    if op == b"MUL_MAT_ID":
        n_experts = weights.ne[2]
        ids = values(tensor.src[2].contents, "<i4")[0, 0]
        sums.setdefault(name, np.zeros((n_experts, x.ne[0]), "<f4"))
        counts.setdefault(name, np.zeros(n_experts, "<f4"))
        for token in range(ids.shape[0]):
            for slot in range(ids.shape[1]):
                row = rows[0, token, slot % x.ne[1]]
                sums[name][ids[token, slot]] += row * row
                counts[name][ids[token, slot]] += 1
    else:
        n_matrices = weights.ne[2] * weights.ne[3]
        sums.setdefault(name, np.zeros((n_matrices, x.ne[0]), "<f4"))
        counts.setdefault(name, np.zeros(1, "<f4"))
        for i3 in range(x.ne[3]):
            for i2 in range(x.ne[2]):
                own = rows[i3, i2]
                sums[name][i3 % weights.ne[3] * weights.ne[2] + i2 % weights.ne[2]] += (own * own).sum(axis=0, dtype="<f4")
        counts[name][0] += x.ne[1] * x.ne[2] * x.ne[3] // n_matrices
    return True


def main(model_path, text_path, n_ctx, out, n_chunks=1 << 30):
    ll.llama_backend_init()
    model = ll.llama_model_load_from_file(model_path.encode(), ll.llama_model_default_params())
    vocab = ll.llama_model_get_vocab(model)
    params = ll.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
    params.n_threads = params.n_threads_batch = 2
    params.cb_eval = observe
    context = ll.llama_init_from_model(model, params)
    text = open(text_path, "rb").read()
    tokens = (ll.llama_token * (len(text) + 8))()
    n = ll.llama_tokenize(vocab, text, len(text), tokens, len(tokens), True, False)
    n_chunks = min(n // n_ctx, n_chunks)
    for chunk in range(n_chunks):
        window = list(tokens[chunk * n_ctx:(chunk + 1) * n_ctx])
        if ll.llama_vocab_get_add_bos(vocab):
            window[0] = ll.llama_vocab_bos(vocab)
        ll.llama_memory_clear(ll.llama_get_memory(context), True)
        batch = ll.llama_batch_init(n_ctx, 0, 1)
        batch.n_tokens = n_ctx
        for i, token in enumerate(window):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        assert ll.llama_decode(context, batch) == 0
        ll.llama_batch_free(batch)
    writer = gguf.GGUFWriter(out, None)
    writer.add_string("general.type", "imatrix")
    writer.add_array("imatrix.datasets", [text_path])
    writer.add_uint32("imatrix.chunk_count", n_chunks)
    writer.add_uint32("imatrix.chunk_size", n_ctx)
    for name in sorted(sums):
        writer.add_tensor(name + ".in_sum2", sums[name])
        writer.add_tensor(name + ".counts", counts[name].reshape(-1, 1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], *map(int, sys.argv[5:6]))
