//! Importance matrices, sound and damaged.

use ruvllm_ggml::GgmlType;
use ruvllm_gguf::{GgufFile, GgufWriter};

use super::*;

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Writes a matrix of two experts, of which the second is unused.
fn write(path: &Path, change: impl FnOnce(&mut GgufWriter<'_>)) {
    let mut writer = GgufWriter::new();
    writer.metadata_mut().set("imatrix.datasets", vec!["wiki.txt".to_owned()]);
    writer.metadata_mut().set("imatrix.chunk_count", 7u32);
    writer.metadata_mut().set("imatrix.chunk_size", 512u32);
    let mut add = |name: &str, shape: &[usize], values: &[f32]| {
        writer.add_tensor(name, GgmlType::F32, shape, floats(values)).expect("a tensor");
    };
    add("e.weight.in_sum2", &[2, 2], &[2.0, 8.0, 0.0, 0.0]);
    add("e.weight.counts", &[1, 2], &[4.0, 0.0]);
    change(&mut writer);
    writer.write_file(path).expect("a temporary folder is writable");
}

#[test]
fn sums_are_divided_by_counts_and_unused_experts_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("imatrix.gguf");
    write(&path, |_| {});
    let matrix = ImportanceMatrix::open(&path).expect("it is sound");
    let entry = matrix.tensor("e.weight").expect("its tensor");
    assert_eq!(entry.values, [0.5, 2.0, 1.0, 1.0]);
    assert_eq!(matrix.unused_experts().collect::<Vec<_>>(), [("e.weight", &[1][..])]);
    assert_eq!((matrix.n_chunks, matrix.dataset.as_deref(), matrix.n_tensors()), (7, Some("wiki.txt"), 1));
}

#[test]
fn damaged_matrices_cost_one_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("imatrix.gguf");
    let check = |expected: &str, change: &dyn Fn(&mut GgufWriter<'_>)| {
        write(&path, change);
        let line = ImportanceMatrix::open(&path).expect_err("it is damaged").to_string();
        assert!(line.contains(expected) && !line.contains('\n'), "{line}");
    };
    let add = |writer: &mut GgufWriter<'_>, name: &str, values: &[f32]| {
        writer.add_tensor(name, GgmlType::F32, &[values.len()], floats(values)).expect("a tensor");
    };
    check("no 'imatrix.chunk_count'", &|writer| {
        writer.metadata_mut().remove("imatrix.chunk_count");
    });
    check("tensor 'b': it has sums and no counts", &|writer| add(writer, "b.in_sum2", &[1.0]));
    check("tensor 'b': it has counts and no sums", &|writer| add(writer, "b.counts", &[1.0]));
    check("3 sums do not belong to 2 counts", &|writer| {
        add(writer, "b.in_sum2", &[1.0; 3]);
        add(writer, "b.counts", &[1.0; 2]);
    });
    check("its sensitivity is negative", &|writer| add(writer, "b.sensitivity", &[-1.0]));
    for value in [-1.0, f32::NAN, f32::INFINITY] {
        check("negative or not finite", &|writer| {
            add(writer, "b.in_sum2", &[value]);
            add(writer, "b.counts", &[1.0]);
        });
    }
}

/// Directory of a tensor of experts, two of two columns and one row each.
fn experts() -> GgufFile {
    let mut writer = GgufWriter::new();
    writer.add_tensor("e.weight", GgmlType::F32, &[2, 1, 2], floats(&[0.0; 4])).expect("a tensor");
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("memory");
    GgufFile::from_bytes(bytes.into()).expect("a file")
}

#[test]
fn squares_are_summed_by_window_and_expert() {
    let file = experts();
    let tensor = file.tensor("e.weight").expect("its tensor");
    let mut collector = ImatrixCollector::default();
    (0..2).for_each(|expert| collector.watch(3 + expert, tensor, expert));
    let mut sums = ImportanceSums { datasets: vec!["a".to_owned()], chunk_size: 2, ..ImportanceSums::default() };
    collector.add(3, &[1.0, 2.0, 3.0, 4.0]);
    // Layers that nobody watches are passed over.
    collector.add(9, &[1.0, 2.0]);
    collector.finish_window(&mut sums);
    collector.add(3, &[0.5, 0.0]);
    collector.drop_window();
    collector.finish_window(&mut sums);
    assert_eq!(sums.unused_experts().collect::<Vec<_>>(), [("e.weight", 1)]);
    sums.set_sensitivity("e.weight", 0.25);

    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("imatrix.gguf");
    sums.write(&path).expect("a temporary folder is writable");
    let read = ImportanceSums::open(&path).expect("it is sound");
    assert_eq!((&read, read.n_chunks, read.n_tensors()), (&sums, 2, 1));
    let matrix = ImportanceMatrix::open(&path).expect("it is sound");
    assert_eq!(matrix.tensor("e.weight").expect("its tensor").values, [5.0, 10.0, 1.0, 1.0]);
    assert_eq!((matrix.sensitivity("e.weight"), matrix.sensitivity("f.weight")), (Some(0.25), None));

    let mut both = sums.clone();
    both.merge(&read).expect("they fit");
    assert_eq!((both.n_chunks, both.datasets.len(), both.n_sensitivities()), (4, 2, 1));
    assert_eq!(ImportanceMatrix::from(both).tensor("e.weight"), matrix.tensor("e.weight"), "the mean is the same");
}

#[test]
fn sums_that_are_not_finite_are_not_written() {
    let file = experts();
    let mut collector = ImatrixCollector::default();
    collector.watch(0, file.tensor("e.weight").expect("its tensor"), 0);
    collector.add(0, &[f32::NAN, 1.0]);
    let mut sums = ImportanceSums::default();
    collector.finish_window(&mut sums);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("imatrix.gguf");
    let line = sums.write(&path).expect_err("it is not finite").to_string();
    assert!(line.contains("tensor 'e.weight': a sum is negative or not finite") && !path.exists(), "{line}");
    assert!(ImportanceSums::default().write(&path).is_err());
}

/// A matrix in the older form.
fn in_older_form(n_entries: i32, tail: &[u8]) -> Vec<u8> {
    let mut bytes = n_entries.to_le_bytes().to_vec();
    for (name, values) in [("a.weight", &[2.0f32, 4.0][..]), ("b.weight", &[6.0])].into_iter().take(n_entries as usize)
    {
        bytes.extend((name.len() as i32).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend(2i32.to_le_bytes());
        bytes.extend((values.len() as i32).to_le_bytes());
        bytes.extend(floats(values));
    }
    bytes.extend(tail);
    bytes
}

#[test]
fn the_older_form_is_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("imatrix.dat");
    let tail = [&5i32.to_le_bytes()[..], &3i32.to_le_bytes(), b"abc"].concat();
    std::fs::write(&path, in_older_form(2, &tail)).expect("a temporary folder is writable");
    let matrix = ImportanceMatrix::open(&path).expect("it is sound");
    assert_eq!(matrix.tensor("a.weight").expect("its tensor").values, [1.0, 2.0]);
    assert_eq!(matrix.tensor("b.weight").expect("its tensor").values, [3.0]);
    assert_eq!((matrix.n_chunks, matrix.dataset.as_deref()), (5, Some("abc")));

    std::fs::write(&path, in_older_form(1, &[])).expect("a temporary folder is writable");
    let matrix = ImportanceMatrix::open(&path).expect("it is sound");
    assert_eq!((matrix.n_chunks, matrix.dataset.as_deref(), matrix.n_tensors()), (0, None, 1));
}

#[test]
fn the_older_form_may_be_cut_anywhere() {
    let whole = in_older_form(2, &[]);
    for n in 0..whole.len() {
        let line = legacy::parse(&whole[..n]).expect_err("it is cut").to_string();
        assert!(line.contains("no importance matrix, or was cut short"), "{line}");
    }
    for count in [i32::MAX, i32::MIN, -1, 0] {
        let mut bytes = whole.clone();
        bytes[..4].copy_from_slice(&count.to_le_bytes());
        assert!(legacy::parse(&bytes).is_err(), "{count} entries");
        let mut bytes = whole.clone();
        bytes[4..8].copy_from_slice(&count.to_le_bytes());
        assert!(legacy::parse(&bytes).is_err(), "a name of {count} bytes");
    }
}
