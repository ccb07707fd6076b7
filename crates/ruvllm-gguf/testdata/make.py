"""Writes gguf_py.gguf and the split pair with gguf-py, an independent writer: `pip install gguf && python make.py`."""
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

def write(path, **options):
    w = GGUFWriter(path, "llama", **options)
    w.add_uint8("t.u8", 255)
    w.add_int8("t.i8", -128)
    w.add_uint16("t.u16", 65535)
    w.add_int16("t.i16", -32768)
    w.add_uint32("t.u32", 4294967295)
    w.add_int32("t.i32", -2147483648)
    w.add_float32("t.f32", 0.1)
    w.add_bool("t.bool", True)
    w.add_string("t.string", "héllo\n世界")
    w.add_uint64("t.u64", 2**64 - 1)
    w.add_int64("t.i64", -(2**63))
    w.add_float64("t.f64", 0.1)
    w.add_array("t.strings", ["a", "bc", "", "▁d"])
    w.add_array("t.ints", [1, -2, 3])
    w.add_array("t.floats", [0.5, -1.5])
    w.add_array("t.bools", [True, False])
    f32 = np.arange(24, dtype=np.float32)
    w.add_tensor("a", f32)
    w.add_tensor("b", f32.reshape(2, 3, 4).astype(np.float16))
    w.add_tensor("c", np.arange(2 * 34, dtype=np.uint8).reshape(2, 34), raw_dtype=GGMLQuantizationType.Q8_0)
    w.add_tensor("d", np.arange(5, dtype=np.int32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()

write("gguf_py.gguf")
write("split.gguf", split_max_tensors=2)
