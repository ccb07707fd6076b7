//! Grammars of calls: what a format writes and its reader reads, its grammar allows.

use std::sync::{Arc, OnceLock};

use ruvllm_gguf::{GgufFile, Metadata};
use ruvllm_text::ModelText;
use ruvllm_text::template::ChatTemplate;
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};
use ruvllm_text::tools::{CallEvent, Tool, ToolChoice, ToolFormat, ToolUse};
use serde_json::{Value, json};

use super::*;

const ALL: [ToolFormat; 7] = ToolFormat::ALL;

/// SmolLM2's metadata, with other names for its control tokens.
fn metadata() -> Metadata {
    let file = GgufFile::open(&ruvllm_testkit::real_model("smollm2:135m")).expect("a GGUF file");
    let mut metadata = file.metadata().clone();
    let mut tokens = metadata.strings("tokenizer.ggml.tokens").expect("texts").expect("tokens").to_vec();
    let marks = ALL.iter().flat_map(|format| format.marks()).filter(|mark| !mark.contains("tool_call>"));
    for (i, mark) in marks.enumerate().filter(|(_, mark)| !mark.is_empty()) {
        // Twice for those that two forms share.
        if !tokens.iter().any(|token| token == mark) {
            tokens[3 + i] = (*mark).to_owned();
        }
    }
    metadata.set("tokenizer.ggml.tokens", tokens);
    metadata
}

/// A template that speaks a form; how it renders does not matter here.
fn template(format: ToolFormat) -> ChatTemplate {
    let source = match format {
        ToolFormat::Hermes => "{{ tools }}<tool_call>",
        ToolFormat::Llama3 => "{{ tools }}<|python_tag|>",
        ToolFormat::Mistral => "{{ tools }}[TOOL_CALLS]",
        ToolFormat::MistralArgs => "{{ tools }}[TOOL_CALLS][ARGS]",
        ToolFormat::FunctionGemma => "{{ tools }}<start_function_call>",
        ToolFormat::Gemma4 => "{{ tools }}<|tool_call>call:",
        ToolFormat::Generic => "{{ messages }}",
    };
    ChatTemplate::new(source, "", "").expect("a template")
}

fn setup() -> &'static (GrammarCompiler, Arc<Tokenizer>) {
    static SETUP: OnceLock<(GrammarCompiler, Arc<Tokenizer>)> = OnceLock::new();
    SETUP.get_or_init(|| {
        let tokenizer = Arc::new(Tokenizer::from_metadata(&metadata()).expect("a tokenizer"));
        (GrammarCompiler::new(&tokenizer, tokenizer.vocab_len()).expect("it has an end"), tokenizer)
    })
}

fn tool(name: &str, parameters: Value) -> Tool {
    Tool { name: name.to_owned(), description: None, parameters: Some(parameters), is_strict: false }
}

fn tools() -> Vec<Tool> {
    ruvllm_testkit::functions().map(|(name, parameters)| tool(name, parameters)).to_vec()
}

fn text(format: ToolFormat) -> ModelText {
    ModelText::new("test", &setup().1, Ok(Some(&Arc::new(template(format)))))
}

fn tool_use(format: ToolFormat, choice: ToolChoice, is_parallel: bool) -> ToolUse {
    let tool_use = ToolUse::new(&text(format), tools(), choice, is_parallel).expect("functions");
    assert_eq!(tool_use.format(), format);
    tool_use
}

/// Returns whether a grammar allows a text as a whole answer; marks that are control tokens are read as such.
fn allows(grammar: &Grammar, text: &str) -> bool {
    let options = EncodeOptions { add_special: false, parse_special: true };
    let ids = setup().1.encode(text, options).expect("it encodes");
    let mut constraint = grammar.start();
    let is_taken = ids.iter().all(|&id| constraint.accept(id).is_ok());
    is_taken && (constraint.is_complete() || constraint.is_valid())
}

fn calls() -> [Value; 2] {
    [
        json!({ "name": "get_weather", "arguments": { "city": "Oslo", "unit": "celsius" } }),
        json!({ "name": "add", "arguments": { "a": 1, "b": -22 } }),
    ]
}

/// Reads a whole answer: its text, and the name and arguments of each call.
fn read(tool_use: &ToolUse, answer: &str) -> (String, Vec<(String, String)>) {
    let mut reader = tool_use.reader();
    let (mut text, mut calls) = (String::new(), Vec::<(String, String)>::new());
    for event in [reader.push(answer), reader.finish()].concat() {
        match event {
            CallEvent::Text(more) => text.push_str(&more),
            CallEvent::Begin { name, .. } => calls.push((name, String::new())),
            CallEvent::Arguments { index, json } => calls[index].1.push_str(&json),
            CallEvent::End { .. } => {}
        }
    }
    (text, calls)
}

/// What a form writes, its reader reads and its grammar allows; what does not fit the schema it does not.
#[test]
fn grammars_hold_models_to_their_form() {
    for format in ALL {
        let compile = |choice: ToolChoice, is_parallel: bool| {
            let tool_use = tool_use(format, choice, is_parallel);
            setup()
                .0
                .compile_calls(&tool_use)
                .unwrap_or_else(|error| panic!("{format:?}: {error}: {:?}", tool_use.source()))
        };
        let [weather, add] = calls();
        let write = |calls: &[Value]| format.write_calls(calls);
        let (one, two) = (write(std::slice::from_ref(&weather)), write(&[weather.clone(), add.clone()]));
        let bad_unit = write(&[json!({ "name": "get_weather", "arguments": { "city": "Oslo", "unit": "rankine" } })]);
        let no_city = write(&[json!({ "name": "get_weather", "arguments": { "unit": "kelvin" } })]);
        let unknown = write(&[json!({ "name": "rm", "arguments": {} })]);
        let (auto, required) = (compile(ToolChoice::Auto, true), compile(ToolChoice::Required, true));
        for (grammar, what) in [(&auto, "auto"), (&required, "required")] {
            assert!(allows(grammar, &one), "{format:?} {what}: {one}");
            assert_eq!(allows(grammar, &two), format.allows_several(), "{format:?} {what}: {two}");
            for bad in [&bad_unit, &no_city, &unknown] {
                assert!(!allows(grammar, bad), "{format:?} {what}: {bad}");
            }
        }
        for text in ["", "Hello there, {you}! [1] <b>", "{\"n\": 1}"] {
            assert!(allows(&auto, text), "{format:?}: {text}");
            assert!(!allows(&required, text), "{format:?}: {text}");
        }
        let is_bare = matches!(format, ToolFormat::Llama3 | ToolFormat::Generic);
        assert!(allows(&auto, &format!("I look. {one}")), "{format:?}");
        assert_eq!(allows(&auto, &format!("I look. {bad_unit}")), is_bare, "{format:?}");
        assert!(!allows(&compile(ToolChoice::Required, false), &two), "{format:?}");
        let named = compile(ToolChoice::Named("add".to_owned()), true);
        assert!(allows(&named, &write(std::slice::from_ref(&add))) && !allows(&named, &one), "{format:?}");
        // What was allowed is read as it was written.
        let (text, read) = read(&tool_use(format, ToolChoice::Auto, true), &one);
        assert_eq!((text.as_str(), read.len(), read[0].0.as_str()), ("", 1, "get_weather"), "{format:?}");
        assert_eq!(serde_json::from_str::<Value>(&read[0].1).expect("JSON"), weather["arguments"], "{format:?}");
    }
}

#[test]
fn schemas_that_cannot_be_held_to_are_named_or_any_object() {
    let bad = json!({ "type": "object", "properties": { "a": { "not": { "const": 1 } } } });
    for format in ALL {
        let text = text(format);
        let make = |choice: ToolChoice, is_strict: bool| {
            let tools = vec![tools()[1].clone(), Tool { is_strict, ..tool("get_time", bad.clone()) }];
            setup().0.compile_calls(&ToolUse::new(&text, tools, choice, false).expect("functions"))
        };
        for result in [make(ToolChoice::Auto, true), make(ToolChoice::Required, false)] {
            let line = result.expect_err("refused").to_string();
            assert!(line.contains("'not'") && line.contains("which is not supported"), "{format:?}: {line}");
        }
        let lenient = make(ToolChoice::Auto, false).expect("any object");
        let call =
            |name: &str, arguments: Value| format.write_calls(&[json!({ "name": name, "arguments": arguments })]);
        assert!(allows(&lenient, &call("get_time", json!({ "a": "x" }))), "{format:?}");
        assert!(!allows(&lenient, &call("add", json!({ "a": "x", "b": 1 }))), "{format:?}");
    }
}

#[test]
fn gemmas_schemas() {
    let text = text(ToolFormat::FunctionGemma);
    let grammar = |schema: Value| {
        let tool_use = ToolUse::new(&text, vec![tool("f", schema)], ToolChoice::Required, false).expect("a function");
        setup().0.compile_calls(&tool_use)
    };
    let schema = json!({ "type": "object", "properties": {
        "when": { "anyOf": [{ "type": "null" }, { "type": "string" }] },
        "n": { "type": ["integer", "boolean"] },
        "list": { "type": "array", "items": { "type": "object", "properties": { "x": { "type": "number" } }, "required": ["x"] } },
        "free": { "type": "object" },
    }, "required": ["n"] });
    let good = grammar(schema).expect("supported");
    let call = |arguments: &str| format!("<start_function_call>call:f{arguments}<end_function_call>");
    for arguments in [
        "{n:3}",
        "{when:null,n:true}",
        "{when:<escape>now, {or} never<escape>,n:-7,list:[{x:1.5},{x:2}]}",
        "{n:1,list:[],free:{a:<escape><escape>,b_1:[1,false]}}",
    ] {
        assert!(allows(&good, &call(arguments)), "{arguments}");
    }
    for arguments in
        ["{}", "{n:1,}", "{n:1.5}", "{n:<escape>1<escape>}", "{n:1,list:[{}]}", "{n:1,when:null}", "{n:1,other:2}"]
    {
        assert!(!allows(&good, &call(arguments)), "{arguments}");
    }
    let line = grammar(json!({ "properties": { "a": { "type": "string", "pattern": "x" } } })).expect_err("refused");
    insta::assert_snapshot!(line, @"the schema of 'f' uses 'pattern', which is not supported in this model's form of calls");
}
