//! Small files to start from, and bytes of files no writer would write.

use ruvllm_gguf::{Array, GgmlType, GgufWriter, StringArray, Value};

/// Every type of value, arrays of each, nested and empty arrays, and tensors of one to four dimensions.
pub(crate) fn writer(version: u32) -> GgufWriter<'static> {
    let mut writer = GgufWriter::new().with_version(version);
    let metadata = writer.metadata_mut();
    metadata.set("general.architecture", "llama");
    metadata.set("general.alignment", 64u32);
    metadata.set("t.u8", u8::MAX);
    metadata.set("t.i8", i8::MIN);
    metadata.set("t.u16", u16::MAX);
    metadata.set("t.i16", i16::MIN);
    metadata.set("t.u32", u32::MAX);
    metadata.set("t.i32", i32::MIN);
    metadata.set("t.f32", 0.1f32);
    metadata.set("t.u64", u64::MAX);
    metadata.set("t.i64", i64::MIN);
    metadata.set("t.f64", 0.1f64);
    metadata.set("t.bool", true);
    metadata.set("t.string", "héllo\n世界");
    metadata.set("t.empty_string", "");
    metadata.set("a.u8", vec![1u8, 2, 3]);
    metadata.set("a.i8", vec![-1i8, 2]);
    metadata.set("a.u16", vec![1u16, 2]);
    metadata.set("a.i16", vec![-1i16, 2]);
    metadata.set("a.u32", vec![1u32, 2]);
    metadata.set("a.i32", vec![-1i32, 2]);
    metadata.set("a.f32", vec![0.5f32, -1.5]);
    metadata.set("a.u64", vec![1u64, 2]);
    metadata.set("a.i64", vec![-1i64, 2]);
    metadata.set("a.f64", vec![0.5f64, -1.5]);
    metadata.set("a.bool", vec![true, false, true]);
    metadata.set("a.string", (0..40).map(|i| "▁".repeat(i % 4)).collect::<StringArray>());
    metadata.set("a.empty", Vec::<u32>::new());
    let inner = Array::Array(vec![Array::U8(vec![7]), Array::String(["x", "y"].iter().collect())]);
    metadata.set("a.nested", Value::Array(Array::Array(vec![Array::F32(vec![1.0]), inner])));
    let tensors: [(&str, GgmlType, &[usize]); 7] = [
        ("token_embd.weight", GgmlType::F32, &[8, 3]),
        ("blk.0.attn_q.weight", GgmlType::Q4_0, &[64, 2]),
        ("blk.0.ffn_up_exps.weight", GgmlType::F16, &[4, 3, 2]),
        ("blk.0.ffn_down.weight", GgmlType::Q4_K, &[256]),
        ("blk.0.conv.weight", GgmlType::BF16, &[2, 3, 1, 2]),
        ("blk.0.ids", GgmlType::I32, &[5]),
        ("output.weight", GgmlType::MXFP4, &[32, 3]),
    ];
    for (i, (name, ty, shape)) in tensors.into_iter().enumerate() {
        let n_bytes = ty.row_bytes(shape.iter().product()).expect("whole blocks");
        let bytes: Vec<u8> = (0..n_bytes).map(|byte| (byte * 7 + i) as u8).collect();
        writer.add_tensor(name, ty, shape, bytes).expect("sound");
    }
    writer
}

/// The bytes of [`writer`]'s file.
pub(crate) fn bytes(version: u32) -> Vec<u8> {
    let mut out = Vec::new();
    writer(version).write_to(&mut out).expect("a vector takes everything");
    out
}

/// Builds the bytes of a version 3 file field by field, right or wrong.
pub(crate) struct Raw(pub(crate) Vec<u8>);

impl Raw {
    pub(crate) fn new(n_tensors: u64, n_metadata: u64) -> Raw {
        Raw(b"GGUF".to_vec()).u32(3).u64(n_tensors).u64(n_metadata)
    }

    pub(crate) fn u32(mut self, value: u32) -> Raw {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Raw {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Raw {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn str(self, text: &str) -> Raw {
        self.u64(text.len() as u64).bytes(text.as_bytes())
    }

    /// A key and a `u32` value.
    pub(crate) fn key_u32(self, key: &str, value: u32) -> Raw {
        self.str(key).u32(4).u32(value)
    }

    /// A key and the head of an array of `n` items of type `ty`.
    pub(crate) fn key_array(self, key: &str, ty: u32, n: u64) -> Raw {
        self.str(key).u32(9).u32(ty).u64(n)
    }

    /// An entry of the tensor directory.
    pub(crate) fn tensor(mut self, name: &str, ty: u32, shape: &[u64], offset: u64) -> Raw {
        self = self.str(name).u32(shape.len() as u32);
        for &dim in shape {
            self = self.u64(dim);
        }
        self.u32(ty).u64(offset)
    }

    /// Zeros up to the alignment of 32, then `n` more.
    pub(crate) fn data(mut self, n: usize) -> Raw {
        let len = self.0.len().next_multiple_of(32) + n;
        self.0.resize(len, 0);
        self
    }
}
