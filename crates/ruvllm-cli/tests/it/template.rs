//! `--chat-template`: another template than the model's own, or than none.

use serde_json::json;

use crate::common::{Bench, error_line, tiny};
use crate::serve::Server;

#[test]
fn a_template_takes_the_place_of_the_models_own() {
    let bench = Bench::new();
    let file = bench.file("chat.jinja", "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}");
    let (model, file) = (tiny().to_string_lossy().into_owned(), file.to_string_lossy().into_owned());
    let run = |more: &[&str]| {
        let args = ["run", "--model", &model, "--max-tokens", "1", "--temp", "0", "--json", "--prompt"];
        bench.json(args.iter().chain(more))["prompt_tokens"].clone()
    };
    assert_eq!(run(&["Hi", "--chat-template", &file]), run(&["<user>Hi", "--raw"]));
    assert_eq!(run(&["Hi", "--chat-template-file", &file]), run(&["<user>Hi", "--raw"]));
    // A text stands for itself, and so does the name of a known one.
    assert_eq!(
        run(&["Hi", "--chat-template", "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"]),
        run(&["<user>Hi", "--raw"])
    );
    let named = run(&["Hi", "--chat-template", "deepseek"]);
    assert_eq!(named, run(&["### Instruction:\nHi\n### Response:\n", "--raw"]));
    let server = Server::start(&bench, &["--chat-template", &file]);
    let answer = server.ask("POST /apply-template", &json!({ "messages": [{ "role": "user", "content": "Hi" }] }));
    assert!(answer.contains(r#""prompt":"<user>Hi""#), "{answer}");
}

#[test]
fn a_template_that_is_none_is_told_before_anything_is_loaded() {
    let bench = Bench::new();
    let broken = bench.file("broken.jinja", "{% for m in messages %}").to_string_lossy().into_owned();
    for command in ["run", "chat", "serve"] {
        let line =
            error_line(&bench.run([command, "--model", "/nowhere.gguf", "--chat-template", "/nowhere.jinja"]), 1);
        assert!(line.contains("/nowhere"), "{command}: {line}");
    }
    let model = tiny().to_string_lossy().into_owned();
    let line = error_line(&bench.run(["run", "--model", &model, "--prompt", "a", "--chat-template", &broken]), 2);
    assert!(line.contains("broken.jinja") && line.contains("end of block"), "{line}");
}
