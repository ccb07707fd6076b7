//! A conversation as tokens, and tokens as text, without any weights.
//!
//! `cargo run -p ruvllm-text --example chat_tokens -- MODEL.gguf`; without an argument the tokens of a tiny file of the test data.

use std::error::Error;
use std::sync::Arc;

use ruvllm_gguf::GgufFile;
use ruvllm_text::ModelText;
use ruvllm_text::template::ChatTemplate;
use ruvllm_text::tokenizer::Tokenizer;
use serde_json::json;

const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

fn main() -> Result<(), Box<dyn Error>> {
    let tiny = || ruvllm_testkit::Golden::load("llama-a").model("f32");
    let file = GgufFile::open(&std::env::args().nth(1).map_or_else(tiny, Into::into))?;
    let tokenizer = Arc::new(Tokenizer::from_metadata(file.metadata())?);
    let source = file.metadata().str("tokenizer.chat_template")?.unwrap_or(TEMPLATE);
    let template = Arc::new(ChatTemplate::new(source, "<s>", "</s>")?);
    let text = ModelText::new("example", &tokenizer, Ok(Some(&template)));
    let messages = [json!({ "role": "user", "content": "Name three rivers." })];
    let tokens = text.encode_chat(&ruvllm_text::chat(&messages, true))?;
    println!("{tokens:?}");
    // A stream gives text in whole characters, token by token.
    let mut stream = tokenizer.stream();
    let pieces: Vec<String> = tokens.iter().filter_map(|&id| stream.push(id)).collect();
    println!("{pieces:?}");
    assert!(pieces.concat().contains("three rivers"));
    Ok(())
}
