//! What is written is what is read, whatever the metadata and tensors.

use proptest::prelude::*;
use ruvllm_gguf::{Array, GgmlType, GgufErrorKind, GgufFile, GgufWriter, Metadata, TensorData, Value};

use crate::base;

fn array() -> impl Strategy<Value = Array> {
    let leaf = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..9).prop_map(Array::U8),
        prop::collection::vec(any::<i8>(), 0..9).prop_map(Array::I8),
        prop::collection::vec(any::<u16>(), 0..9).prop_map(Array::U16),
        prop::collection::vec(any::<i16>(), 0..9).prop_map(Array::I16),
        prop::collection::vec(any::<u32>(), 0..9).prop_map(Array::U32),
        prop::collection::vec(any::<i32>(), 0..9).prop_map(Array::I32),
        prop::collection::vec(any::<u64>(), 0..9).prop_map(Array::U64),
        prop::collection::vec(any::<i64>(), 0..9).prop_map(Array::I64),
        prop::collection::vec(-1e30f32..1e30, 0..9).prop_map(Array::F32),
        prop::collection::vec(-1e300f64..1e300, 0..9).prop_map(Array::F64),
        prop::collection::vec(any::<bool>(), 0..9).prop_map(Array::Bool),
        prop::collection::vec(".{0,9}", 0..40).prop_map(|items| Array::String(items.iter().collect())),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| prop::collection::vec(inner, 0..4).prop_map(Array::Array))
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        (-1e30f32..1e30).prop_map(Value::F32),
        (-1e300f64..1e300).prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        ".{0,40}".prop_map(Value::String),
        array().prop_map(Value::Array),
    ]
}

/// A type, a shape of whole blocks with one to four sizes, and a seed for its bytes.
fn tensor() -> impl Strategy<Value = (GgmlType, Vec<usize>, u8)> {
    let ty = prop::sample::select(GgmlType::ALL);
    (ty, prop::collection::vec(1usize..4, 1..=4), any::<u8>()).prop_map(|(ty, mut shape, seed)| {
        shape[0] *= ty.block_len();
        (ty, shape, seed)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn any_file(
        entries in prop::collection::vec((".{1,20}", value()), 0..12),
        tensors in prop::collection::vec(tensor(), 0..8),
        version in 1u32..=3,
        alignment in 0u32..10,
    ) {
        let mut writer = GgufWriter::new().with_version(version);
        for (key, value) in &entries {
            writer.metadata_mut().set(key.as_str(), value.clone());
        }
        writer.metadata_mut().set("general.alignment", 1u32 << alignment);
        let metadata: Metadata = writer.metadata_mut().clone();
        let mut all_bytes = Vec::new();
        for (i, (ty, shape, seed)) in tensors.iter().enumerate() {
            let n_bytes = ty.row_bytes(shape.iter().product()).expect("whole blocks");
            let bytes: Vec<u8> = (0..n_bytes).map(|byte| (byte as u8).wrapping_mul(31).wrapping_add(*seed)).collect();
            let data = if seed % 2 == 0 { TensorData::from(bytes.clone()) } else {
                TensorData::reader(std::io::Cursor::new(bytes.clone()))
            };
            writer.add_tensor(format!("tensor {i}"), *ty, shape, data).expect("sound");
            all_bytes.push(bytes);
        }
        let mut out = Vec::new();
        let n_written = writer.write_to(&mut out).expect("sound");
        prop_assert_eq!(n_written, out.len() as u64);

        let file = GgufFile::from_bytes(out.clone().into()).expect("sound");
        prop_assert_eq!((file.version(), file.alignment()), (version, 1 << alignment));
        prop_assert_eq!(file.metadata(), &metadata);
        prop_assert_eq!(file.tensors().len(), tensors.len());
        for ((tensor, (ty, shape, _)), bytes) in file.tensors().zip(&tensors).zip(&all_bytes) {
            prop_assert_eq!((tensor.ty, &tensor.shape), (*ty, shape));
            prop_assert_eq!(tensor.n_elements(), shape.iter().product::<usize>());
            prop_assert_eq!(&file.data(tensor)[..], &bytes[..]);
        }
        let mut again = Vec::new();
        GgufWriter::from_file(&file).write_to(&mut again).expect("sound");
        prop_assert_eq!(again, out);
    }
}

#[test]
fn a_file_appears_when_it_is_complete() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    base::writer(3).write_file(&path).expect("sound");
    assert_eq!(std::fs::read(&path).expect("written"), base::bytes(3));

    let mut writer = base::writer(3);
    let short = TensorData::reader(&b"1234"[..]);
    writer.add_tensor("short", GgmlType::F32, &[2], short).expect("as far as can be seen");
    let error = writer.write_file(&path).expect_err("the source is too short");
    assert_eq!(error.path(), Some(path.as_path()));
    assert!(error.to_string().ends_with("tensor 'short': its source should give 8 bytes and gave 4"), "{error}");
    assert_eq!(std::fs::read(&path).expect("still the old one"), base::bytes(3));
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing is left behind");
}

#[test]
fn what_could_not_be_read_is_not_written() {
    let check = |change: &dyn Fn(&mut GgufWriter<'static>), kind: GgufErrorKind, message: &str| {
        let mut writer = base::writer(3);
        change(&mut writer);
        let error = writer.write_to(std::io::sink()).expect_err(message);
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, message));
    };
    let twice = |writer: &mut GgufWriter<'static>| {
        writer.add_tensor("blk.0.ids", GgmlType::I8, &[1], vec![0]).expect("alone it is sound");
    };
    check(&twice, GgufErrorKind::Duplicate, "tensor 'blk.0.ids' was added twice (entries 5 and 7)");
    let odd = |writer: &mut GgufWriter<'static>| writer.metadata_mut().set("general.alignment", 48u32);
    check(&odd, GgufErrorKind::Invalid, "general.alignment is 48, expected a power of two up to 1048576");
    let nameless = |writer: &mut GgufWriter<'static>| writer.metadata_mut().set("", 1u32);
    check(&nameless, GgufErrorKind::Invalid, "the key is empty");
    let deep = |writer: &mut GgufWriter<'static>| {
        let array = (0..4).fold(Array::U8(vec![]), |inner, _| Array::Array(vec![inner]));
        writer.metadata_mut().set("deep", array);
    };
    check(&deep, GgufErrorKind::Limit, "metadata key 'deep': arrays nested deeper than 4, or more than 65536 of them");

    let refused = |ty, shape: &[usize], n_bytes: usize| {
        GgufWriter::new().add_tensor("x", ty, shape, vec![0; n_bytes]).expect_err("refused").to_string()
    };
    assert_eq!(refused(GgmlType::F32, &[2, 2], 15), "tensor 'x': shape [2, 2] of F32 needs 16 bytes, have 15");
    assert_eq!(refused(GgmlType::Q8_0, &[33], 0), "tensor 'x': rows of 33 values are not whole Q8_0 blocks of 32");
    assert_eq!(refused(GgmlType::F32, &[], 0), "tensor 'x': 0 dimensions, expected 1 to 4");
    assert_eq!(refused(GgmlType::F32, &[3, 0], 0), "tensor 'x': shape [3, 0] has a dimension of 0");
}

#[test]
fn metadata_keeps_its_order_and_its_keys_apart() {
    let mut metadata = Metadata::new();
    for (key, value) in [("c", 1u32), ("a", 2), ("b", 3), ("a", 4)] {
        metadata.set(key, value);
    }
    let listed =
        |metadata: &Metadata| metadata.iter().map(|(key, value)| format!("{key}={value:?}")).collect::<Vec<_>>();
    assert_eq!(listed(&metadata), ["c=U32(1)", "a=U32(4)", "b=U32(3)"]);
    assert_eq!(metadata.remove("c"), Some(Value::U32(1)));
    assert_eq!(metadata.remove("c"), None);
    assert_eq!(listed(&metadata), ["a=U32(4)", "b=U32(3)"]);
    assert_eq!((metadata.get("a"), metadata.get("b")), (Some(&Value::U32(4)), Some(&Value::U32(3))));
    assert_eq!((metadata.len(), metadata.is_empty(), metadata.contains("c")), (2, false, false));
}
