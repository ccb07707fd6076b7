//! Templates, grammars and schemas.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use ruvllm_engine::template::{ChatInput, ChatTemplate};
use ruvllm_engine::tokenizer::Tokenizer;
use ruvllm_engine::{GrammarCompiler, GrammarSource};
use ruvllm_gguf::GgufFile;
use ruvllm_testkit::Golden;
use serde_json::json;

use crate::check_line;

/// The most steps of a walk.
const N_STEPS_MAX: usize = 32;

/// Compiles a template and renders it twice.
pub fn template(bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let template = match ChatTemplate::new(source, "<s>", "</s>") {
        Ok(template) => template,
        Err(error) => return check_line(&error),
    };
    let call = json!([{ "type": "function", "id": "c1", "function": { "name": "get", "arguments": { "city": "Rome" } } }]);
    let input = ChatInput {
        messages: vec![
            json!({ "role": "system", "content": "Be short." }),
            json!({ "role": "user", "content": "2 + 2?" }),
            json!({ "role": "assistant", "content": null, "tool_calls": call }),
            json!({ "role": "tool", "content": "4", "tool_call_id": "c1" }),
        ],
        tools: Some(json!([{ "type": "function", "function": { "name": "get", "parameters": { "type": "object" } } }])),
        add_generation_prompt: true,
        now: Some(SystemTime::UNIX_EPOCH),
        ..ChatInput::default()
    };
    match (template.render(&input), template.render(&input)) {
        (Ok(first), Ok(second)) => assert_eq!(first, second, "the same twice"),
        (Err(error), Err(_)) => check_line(&error),
        (first, second) => panic!("once {first:?}, once {second:?}"),
    }
}

/// Compiles a grammar and walks through it. The first byte says which kind, the second how to walk.
pub fn grammar(bytes: &[u8]) {
    let Some((&[kind, way], text)) = bytes.split_first_chunk::<2>() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let source = match kind % 4 {
        0 => GrammarSource::Regex(text.to_owned()),
        1 => GrammarSource::Gbnf(text.to_owned()),
        2 => GrammarSource::Lark(text.to_owned()),
        _ => GrammarSource::Choice(text.split('|').map(str::to_owned).collect()),
    };
    walk(&source, way);
}

/// Compiles a schema and walks through it. The first byte says how to walk.
pub fn schema(bytes: &[u8]) {
    let Some((&way, text)) = bytes.split_first() else { return };
    if let Ok(schema) = serde_json::from_slice(text) {
        walk(&GrammarSource::JsonSchema(schema), way);
    }
}

fn compiler() -> &'static (GrammarCompiler, usize) {
    static COMPILER: OnceLock<(GrammarCompiler, usize)> = OnceLock::new();
    COMPILER.get_or_init(|| {
        let file = GgufFile::open(&Golden::load("llama-a").model("f32")).expect("a golden file");
        let tokenizer = Arc::new(Tokenizer::from_metadata(file.metadata()).expect("a vocabulary"));
        let n_vocab = tokenizer.vocab_len();
        (GrammarCompiler::new(&tokenizer, n_vocab).expect("a vocabulary of texts"), n_vocab)
    })
}

/// Takes tokens that the mask allows: none may be refused, and there is one until the text is complete.
fn walk(source: &GrammarSource, way: u8) {
    let (compiler, n_vocab) = compiler();
    let grammar = match compiler.compile(source) {
        Ok(grammar) => grammar,
        Err(error) => return check_line(&error),
    };
    let (mut constraint, mut taken, mut state) = (grammar.start(), Vec::new(), usize::from(way));
    for _ in 0..N_STEPS_MAX {
        if let Err(error) = constraint.compute_mask() {
            return check_line(&error);
        }
        let mut logits = vec![0.0f32; *n_vocab];
        constraint.apply_mask(&mut logits);
        let allowed: Vec<usize> = (0..*n_vocab).filter(|&id| logits[id] == 0.0).collect();
        if allowed.is_empty() {
            assert!(constraint.is_complete() || constraint.is_valid(), "no token is allowed");
            return;
        }
        state = state.wrapping_mul(31).wrapping_add(7);
        let id = allowed[state % allowed.len()] as u32;
        if let Err(error) = constraint.accept(id) {
            // A grammar without an end goes on until its bound of work; what a mask cannot say is judged when a value closes.
            let line = error.to_string();
            let is_judged = constraint.is_watched() && line.ends_with("does not fit the schema");
            assert!(is_judged || line.contains("limit"), "{id} after {taken:?} was allowed: {error}");
            return check_line(&error);
        }
        taken.push(id);
        if constraint.is_complete() {
            return;
        }
    }
}
