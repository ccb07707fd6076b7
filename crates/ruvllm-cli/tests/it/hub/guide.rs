//! The guide of `docs/src/own-models.md`: from a folder to a published file, each command as it stands there.

use super::server::Hub;
use super::{TOKEN, run, ruvllm};
use crate::common::{Bench, text};
use crate::convert::model_files;

const GUIDE: &str = include_str!("../../../../../docs/src/own-models.md");

/// Returns the commands of the guide's first block, in order, each as its words.
fn commands() -> Vec<Vec<String>> {
    let (_, block) = GUIDE.split_once("```sh\n").expect("a block of commands");
    let (block, _) = block.split_once("```").expect("its end");
    let words = |line: &str| -> Vec<String> {
        let words = line.split_whitespace().map(|word| word.trim_matches('"').to_owned());
        words.collect()
    };
    block.lines().map(words).collect()
}

#[test]
fn its_six_commands_publish_a_model() {
    let (bench, hub) = (Bench::new(), Hub::start(&[]));
    hub.state().token = Some(TOKEN.to_owned());
    std::fs::create_dir(bench.path("my-model")).expect("a temporary folder is writable");
    for (name, bytes) in model_files("llama") {
        bench.file(&format!("my-model/{name}"), bytes);
    }
    for (name, words) in [("text.txt", ["fox", "dog", "jumps"]), ("other-text.txt", ["cat", "bird", "sleeps"])] {
        let sentence = |i: usize| format!("The {} number {i} {} over the lazy {}.\n", words[0], words[2], words[1]);
        bench.file(name, (0..300).map(sentence).collect::<String>());
    }
    let commands = commands();
    assert_eq!(commands.len(), 6);
    for words in &commands {
        let args: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
        let output = run(ruvllm(&bench, &hub).env("HF_TOKEN", TOKEN), &args);
        let told = text(&output.stdout);
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        match args[0] {
            "compare" => assert!(told.contains("MEAN KL") && told.contains("my-model-q4.gguf"), "{told}"),
            // A model of random weights may end its answer at once.
            "run" => {}
            _ => assert!(told.contains(".gguf") || told.contains("hf:me"), "{words:?}: {told}"),
        }
    }
    let state = hub.state();
    let files = &state.repos["me/my-model-GGUF"];
    let file = std::fs::read(bench.path("my-model-q4.gguf")).expect("the file");
    assert!(files["my-model-q4.gguf"] == file, "what was published is the file");
    let card = text(&files["README.md"]);
    assert!(card.contains("| Importance matrix |") && card.contains("text.txt"), "{card}");
}
