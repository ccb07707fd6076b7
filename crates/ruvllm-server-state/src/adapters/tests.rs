//! Paths: what a request names lies within the folder.

use super::*;

fn file(path: &Path) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a temporary folder is writable");
    std::fs::write(path, "x").expect("a temporary folder is writable");
}

#[test]
fn paths_stay_within_the_folder() {
    let place = tempfile::tempdir().expect("a temporary folder");
    let (folder, outside) = (place.path().join("in"), place.path().join("out"));
    for path in [
        "a.gguf",
        "sub/b.gguf",
        "peft/adapter_config.json",
        "peft/adapter_model.safetensors",
        "half/adapter_config.json",
    ] {
        file(&folder.join(path));
        file(&outside.join(path));
    }
    file(&folder.join(".hidden.gguf"));
    std::os::unix::fs::symlink(outside.join("a.gguf"), folder.join("link.gguf")).expect("a link");
    std::os::unix::fs::symlink(&outside, folder.join("door")).expect("a link");
    std::os::unix::fs::symlink("a.gguf", folder.join("alias.gguf")).expect("a link");
    std::fs::create_dir_all(folder.join("trap")).expect("a folder");
    file(&folder.join("trap/adapter_config.json"));
    std::os::unix::fs::symlink(outside.join("a.gguf"), folder.join("trap/adapter_model.safetensors")).expect("a link");

    let adapters = Adapters::new(AdapterOptions { folder: Some(folder.clone()), ..AdapterOptions::default() });
    let end = |name: &str, path: Option<&str>| {
        let found = adapters.locate(name, path).map_err(|error| (error.status.as_u16(), error.code));
        found.map(|found| found.strip_prefix(folder.canonicalize().expect("it is there")).expect("within").to_owned())
    };
    for (path, expected) in
        [("a.gguf", "a.gguf"), ("sub/b.gguf", "sub/b.gguf"), ("peft", "peft"), ("alias.gguf", "a.gguf")]
    {
        assert_eq!(end("x", Some(path)), Ok(PathBuf::from(expected)));
    }
    assert_eq!((end("a", None), end("peft", None)), (Ok("a.gguf".into()), Ok("peft".into())));
    let absolute = folder.join("a.gguf");
    let tricks = [
        "",
        ".",
        "..",
        "../out/a.gguf",
        "sub/../a.gguf",
        "./a.gguf/..",
        "link.gguf",
        "door/a.gguf",
        "trap",
        "half",
        "nothing.gguf",
        "a.gguf\0",
        "sub",
        absolute.to_str().expect("a path"),
    ];
    for path in tricks {
        assert_eq!(end("x", Some(path)), Err((400, Some("adapter_file_not_found"))), "{path:?}");
    }
    for name in ["", "..", "../x", "a/b", "a\0", "a:b"] {
        assert_eq!(end(name, None), Err((400, Some("invalid_value"))), "{name:?}");
    }
    let names: Vec<String> = found(&folder).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "alias", "half", "link", "peft", "trap"]);
    let none = Adapters::new(AdapterOptions::default());
    assert_eq!(none.locate("x", None).map_err(|error| error.code), Err(Some("no_adapter_folder")));
}
