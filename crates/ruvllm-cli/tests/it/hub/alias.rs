//! Names of the person's own.

use super::server::Hub;
use super::{model_bytes, run, ruvllm};
use crate::common::{Bench, error_line, json_of, text, told};

#[test]
fn an_alias_is_a_name_like_any_other() {
    let (bench, hub) = (Bench::new(), Hub::start(&[("owner/repo", "m.gguf", &model_bytes(3))]));
    let run = |args: &[&str]| run(&mut ruvllm(&bench, &hub), args);
    json_of(&run(&["alias", "mine", "hf:owner/repo/m.gguf", "--json"]));
    let pulled = json_of(&run(&["pull", "mine", "--json"]));
    assert_eq!(pulled["name"], "hf:owner/repo/m.gguf");
    let listed = json_of(&run(&["alias", "--list", "--json"]));
    assert_eq!(listed["aliases"][0]["target"], "hf:owner/repo/m.gguf");
    assert!(text(&run(&["alias", "--list"]).stdout).contains("mine  hf:owner/repo/m.gguf"));
    json_of(&run(&["rm", "mine", "--json"]));
    json_of(&run(&["alias", "--remove", "mine", "--json"]));
    let line = error_line(&run(&["pull", "mine"]), 2);
    assert!(line.contains("unknown model 'mine'"), "{line}");
    for (args, expected) in [
        (&["alias", "smollm2", "gemma3"][..], "'smollm2' is a model of the registry"),
        (&["alias", "a/b", "gemma3"], "'a/b' cannot be an alias"),
        (&["alias", "x", "llama9"], "unknown model 'llama9'"),
        (&["alias", "x", "/nowhere/m.gguf"], "there is no file /nowhere/m.gguf; name one that is there"),
        (&["alias", "--remove", "x"], "there is no alias 'x'"),
        (&["alias"], "say a name and what it stands for"),
        (&["alias", "x"], "<TARGET>"),
    ] {
        let line = error_line(&run(args), 2);
        assert!(line.contains(expected), "{args:?}: {line}");
    }
}

#[test]
fn a_path_is_kept_from_the_root() {
    let (bench, hub) = (Bench::new(), Hub::start(&[]));
    bench.file("own.gguf", model_bytes(3));
    let set = json_of(&run(&mut ruvllm(&bench, &hub), &["alias", "own", "own.gguf", "--json"]));
    assert!(
        set["target"].as_str().is_some_and(|target| target.ends_with("/own.gguf") && target.starts_with('/')),
        "{set}"
    );
}

#[test]
fn a_file_with_a_mistake_costs_one_line_and_the_registry_still_works() {
    let (bench, hub) = (Bench::new(), Hub::start(&[]));
    std::fs::create_dir_all(bench.path("config/ruvllm")).expect("a temporary folder is writable");
    let file = bench.file("config/ruvllm/registry.toml", "[[model]]\nname = \"my:1b\"\nsize = 1\n");
    let output = run(&mut ruvllm(&bench, &hub), &["list"]);
    assert!(output.status.success() && text(&output.stdout).contains("smollm2:135m"));
    let line = told(&output.stderr);
    assert!(line.starts_with(&format!("warning: {}: line 3: unknown field `size`", file.display())), "{line}");
    assert_eq!(line.matches('\n').count(), 1, "{line}");
    std::fs::write(
        &file,
        "[[model]]\nname = \"my:1b\"\nabout = \"mine\"\nhub = { repo = \"o/r\", file = \"m.gguf\" }\n",
    )
    .expect("writable");
    let listed = json_of(&run(&mut ruvllm(&bench, &hub), &["list", "--json"]));
    assert_eq!(listed["available"][4]["name"], "my:1b");
}
