//! The forms of calls: what their models' makers publish, whole and in pieces, and what is none.

use proptest::prelude::*;
use ruvllm_gguf::GgufFile;
use serde_json::{Value, json};

use super::*;
use crate::template::ChatInput;
use crate::tokenizer::Tokenizer;

const ALL: [ToolFormat; 7] = ToolFormat::ALL;

fn names() -> Vec<String> {
    ["get_weather", "get_time", "trending_songs", "add"].map(str::to_owned).to_vec()
}

/// What was said, and what was called: name and arguments.
type Read = (String, Vec<(String, String)>);

/// Reads an answer that comes in pieces, and checks that every byte was taken for something.
fn read<'p>(format: ToolFormat, pieces: impl IntoIterator<Item = &'p str>) -> Read {
    let mut reader = CallReader::new(format, names());
    let (mut text, mut calls, mut open, mut given) = (String::new(), Vec::new(), None, String::new());
    let mut take = |events: Vec<CallEvent>| {
        for event in events {
            match event {
                CallEvent::Text(more) => text.push_str(&more),
                CallEvent::Begin { index, name } => {
                    assert_eq!((open, index), (None, calls.len()));
                    open = Some(index);
                    calls.push((name, String::new()));
                }
                CallEvent::Arguments { index, json } => {
                    assert_eq!(open, Some(index));
                    calls[index].1.push_str(&json);
                }
                CallEvent::End { index } => assert_eq!(open.take(), Some(index)),
            }
        }
    };
    for piece in pieces {
        given.push_str(piece);
        take(reader.push(piece));
    }
    take(reader.finish());
    assert_eq!(open, None, "{given}");
    let taken: String = reader.taken.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(taken, given);
    let said: String = reader.taken.iter().filter(|(what, _)| *what == 't').map(|(_, text)| text.as_str()).collect();
    assert_eq!(said, text);
    (text, calls)
}

/// Reads an answer whole, cut in two at every place, and character by character, which must be the same.
fn read_every_way(format: ToolFormat, answer: &str) -> Read {
    let whole = read(format, [answer]);
    for (at, _) in answer.char_indices() {
        assert_eq!(read(format, [&answer[..at], &answer[at..]]), whole, "cut at {at}: {answer}");
    }
    let characters = answer.char_indices().map(|(at, c)| &answer[at..at + c.len_utf8()]);
    assert_eq!(read(format, characters), whole, "{answer}");
    whole
}

#[track_caller]
fn check(format: ToolFormat, answer: &str, text: &str, calls: &[(&str, Value)]) {
    let (said, called) = read_every_way(format, answer);
    let parsed = |(name, json): &(String, String)| {
        let value = serde_json::from_str::<Value>(json).unwrap_or_else(|error| panic!("{error}: {json}"));
        (name.clone(), value)
    };
    let expected: Vec<(String, Value)> = calls.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
    assert_eq!((said.as_str(), called.iter().map(parsed).collect::<Vec<_>>()), (text, expected), "{answer}");
}

#[test]
fn hermes_and_qwen() {
    let paris = json!({ "location": "Paris, France", "unit": "celsius" });
    let call = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"location\": \"Paris, France\", \"unit\": \"celsius\"}}\n</tool_call>";
    let check = |answer: &str, text: &str, calls: &[(&str, Value)]| check(ToolFormat::Hermes, answer, text, calls);
    check(call, "", &[("get_weather", paris.clone())]);
    check(&format!("Let me look.\n{call}"), "Let me look.", &[("get_weather", paris.clone())]);
    let time = json!({ "zone": "<tool_call> \"}{\" é" });
    let other = format!("<tool_call>{}</tool_call>", json!({ "name": "get_time", "arguments": time }));
    check(&format!("{call}\n{other}\ndone"), "\ndone", &[("get_weather", paris.clone()), ("get_time", time.clone())]);
    // The properties in another order, arguments as a text, none at all.
    check("<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"add\"}</tool_call>", "", &[("add", json!({ "a": 1 }))]);
    check(
        "<tool_call>\n{\"name\": \"add\", \"arguments\": \"{\\\"a\\\": 1}\"}\n</tool_call>",
        "",
        &[("add", json!({ "a": 1 }))],
    );
    check("<tool_call>\n{\"name\": \"get_time\"}\n</tool_call>", "", &[("get_time", json!({}))]);
    // Cut behind the arguments, or without the mark that closes.
    check("<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": [1]}", "", &[("add", json!({ "a": [1] }))]);
    check("<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\nSo be it", "\nSo be it", &[("add", json!({}))]);
}

#[test]
fn llama_3() {
    let songs = json!({ "n": "10", "genre": "all" });
    let check = |answer: &str, text: &str, calls: &[(&str, Value)]| check(ToolFormat::Llama3, answer, text, calls);
    let bare = "{\"name\": \"trending_songs\", \"parameters\": {\"n\": \"10\", \"genre\": \"all\"}}";
    check(bare, "", &[("trending_songs", songs.clone())]);
    check(&format!("<|python_tag|>{bare}"), "", &[("trending_songs", songs.clone())]);
    let typed =
        "{\"type\": \"function\", \"name\": \"trending_songs\", \"parameters\": {\"n\": \"10\", \"genre\": \"all\"}}";
    check(typed, "", &[("trending_songs", songs.clone())]);
    check(&format!("{bare}; {bare}"), "", &[("trending_songs", songs.clone()), ("trending_songs", songs.clone())]);
    check(&format!("Here: {bare}"), &format!("Here: {bare}"), &[]);
    check(&format!("Here:<|python_tag|>{bare}"), "Here:", &[("trending_songs", songs)]);
    check("{\"city\": \"Rome\"}", "{\"city\": \"Rome\"}", &[]);
    check("<|python_tag|>print(1)", "<|python_tag|>print(1)", &[]);
}

#[test]
fn mistral() {
    let paris = json!({ "location": "Paris, France", "format": "celsius" });
    let one = "{\"name\": \"get_weather\", \"arguments\": {\"location\": \"Paris, France\", \"format\": \"celsius\"}";
    for format in [ToolFormat::Mistral, ToolFormat::MistralArgs] {
        check(format, "a [TOOL_CALLS] b", "a [TOOL_CALLS] b", &[]);
        check(
            format,
            "[TOOL_CALLS]get_weather[CALL_ID]9Ae3bDc2F[ARGS]{\"location\": \"Paris, France\", \"format\": \"celsius\"}[TOOL_CALLS]get_time[ARGS]{}",
            "",
            &[("get_weather", paris.clone()), ("get_time", json!({}))],
        );
    }
    check(ToolFormat::Mistral, &format!("[TOOL_CALLS] [{one}}}]"), "", &[("get_weather", paris.clone())]);
    check(
        ToolFormat::Mistral,
        &format!("Sure.[TOOL_CALLS][{one}, \"id\": \"9Ae3bDc2F\"}}, {one}}}]"),
        "Sure.",
        &[("get_weather", paris.clone()), ("get_weather", paris)],
    );
}

#[test]
fn gemma() {
    let forms = [
        (ToolFormat::FunctionGemma, "<start_function_call>", "<end_function_call>", "<escape>"),
        (ToolFormat::Gemma4, "<|tool_call>", "<tool_call|>", "<|\"|>"),
    ];
    for (format, open, close, q) in forms {
        let london = format!("{open}call:get_weather{{location:{q}London{q}}}{close}");
        check(format, &london, "", &[("get_weather", json!({ "location": "London" }))]);
        let rich = format!(
            "{open}call:add{{a:-1.5,deep:{{on:true,list:[1,{q}x}},\"y\\{q},{{}}]}},word:celsius,none:null}}{close}"
        );
        let expected =
            json!({ "a": -1.5, "deep": { "on": true, "list": [1, "x},\"y\\", {}] }, "word": "celsius", "none": null });
        check(
            format,
            &format!("One moment. {rich}{london}"),
            "One moment.",
            &[("add", expected), ("get_weather", json!({ "location": "London" }))],
        );
        check(format, &format!("{open}call:get_time{{}}{close}"), "", &[("get_time", json!({}))]);
        let unknown = format!("{open}call:rm{{path:{q}/{q}}}{close}");
        check(format, &unknown, &unknown, &[]);
        // An answer that is cut in a text where its end might have begun.
        let called = |json: &str| (String::new(), vec![("add".to_owned(), json.to_owned())]);
        assert_eq!(read_every_way(format, &format!("{open}call:add{{k:{q}a<")), called("{\"k\":\"a<"));
    }
}

#[test]
fn generic() {
    let check = |answer: &str, text: &str, calls: &[(&str, Value)]| check(ToolFormat::Generic, answer, text, calls);
    let add = "{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}";
    let sum = json!({ "a": 1, "b": 2 });
    check(add, "", &[("add", sum.clone())]);
    check(&format!("\n{add}\n{add}\n"), "\n", &[("add", sum.clone()), ("add", sum.clone())]);
    check(&format!("[{add}, {add}]"), "", &[("add", sum.clone()), ("add", sum.clone())]);
    check(&format!("{add}\nThat is it."), "\nThat is it.", &[("add", sum)]);
    check(&format!("I would say {add}"), &format!("I would say {add}"), &[]);
    check("[1, 2]", "[1, 2]", &[]);
}

/// What looks like a call and is none stays text.
#[test]
fn what_is_no_call_stays_text() {
    for answer in [
        "",
        "  \n",
        "Just text, with {braces} and <tags>.",
        "<tool_call>",
        "<tool_call>\n{\"name\": \"rm\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>{\"name\": \"add\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"add\"",
        "<tool_call>{name: add}</tool_call>",
        "[TOOL_CALLS][{\"name\": 1}]",
        "[TOOL_CALLS]add[ARGS]",
        "<start_function_call>call:add<end_function_call>",
        "{\"name\": \"rm\", \"parameters\": {}}",
        "{\"name\": \"add\", \"arguments\": 3}",
    ] {
        for format in ALL {
            check(format, answer, answer, &[]);
        }
    }
    // Arguments that were cut are there as far as they came.
    let (text, calls) = read_every_way(ToolFormat::Hermes, "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1");
    assert_eq!((text.as_str(), &calls[0].1[..]), ("", "{\"a\": 1"));
}

fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "\n",
        " ",
        "{\"name\": \"add\", \"arguments\": ",
        "{\"name\": \"no\"",
        "{\"a\": 1}",
        "}",
        "{",
        "[",
        "]",
        ",",
        ";",
        "\"",
        "\\",
        "é",
        "word",
        "[TOOL_CALLS]",
        "add",
        "[ARGS]",
        "[CALL_ID]",
        "<|python_tag|>",
        "<start_function_call>",
        "call:add{",
        "k:",
        "<escape>",
        "<end_function_call>",
        "<|tool_call>",
        "<|\"|>",
        "<tool_call|>",
        "\"parameters\": ",
        "1",
        "<",
        "<tool",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Every byte is text, a mark of a call or its arguments, however the answer is cut (`read` checks it).
    #[test]
    fn nothing_is_lost(answer in pieces(), cuts in prop::collection::vec(0usize..200, 0..6)) {
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|&at| answer.is_char_boundary(at)).collect();
        cuts.extend([0, answer.len()]);
        cuts.sort();
        for format in ALL {
            let whole = read(format, [&answer[..]]);
            prop_assert_eq!(read(format, cuts.windows(2).map(|cut| &answer[cut[0]..cut[1]])), whole);
        }
    }
}

fn tool(name: &str, parameters: Value) -> Tool {
    Tool { name: name.to_owned(), description: None, parameters: Some(parameters), is_strict: false }
}

fn tools() -> Vec<Tool> {
    ruvllm_testkit::functions().map(|(name, parameters)| tool(name, parameters)).to_vec()
}

#[test]
fn what_cannot_be_called_is_refused() {
    let file = GgufFile::open(&ruvllm_testkit::real_model("smollm2:135m")).expect("a GGUF file");
    let tokenizer = Tokenizer::from_metadata(file.metadata()).expect("a tokenizer");
    let text = ModelText::new("test", &Arc::new(tokenizer), Ok(None));
    let line = |tools: Vec<Tool>, choice: ToolChoice| {
        ToolUse::new(&text, tools, choice, true).expect_err("refused").to_string()
    };
    insta::assert_snapshot!(line(vec![], ToolChoice::Auto), @"there is no function to be called; name some or choose none");
    insta::assert_snapshot!(line(vec![tool("a b", json!({}))], ToolChoice::Auto), @"'a b' is no name of a function; use 1 to 128 letters, digits, underscores, dashes and dots");
    insta::assert_snapshot!(line(vec![tool("a", json!({ "type": "array" }))], ToolChoice::Auto), @r#"the parameters of 'a' are of type "array"; arguments are an object"#);
    insta::assert_snapshot!(line([tools(), tools()].concat(), ToolChoice::Auto), @"two functions are named 'get_weather'; give each its own name");
    insta::assert_snapshot!(line(tools(), ToolChoice::Named("rm".into())), @"the function 'rm' is chosen and not there; there is get_weather, add");
}

/// A conversation with a call and its result.
fn conversation() -> ChatInput {
    let call =
        json!({ "id": "call_1", "type": "function", "function": { "name": "add", "arguments": { "a": 1, "b": 2 } } });
    let messages = vec![
        json!({ "role": "user", "content": "1 + 2?" }),
        json!({ "role": "assistant", "content": "", "tool_calls": [call] }),
        json!({ "role": "tool", "tool_call_id": "call_1", "content": "3" }),
        json!({ "role": "user", "content": "Thanks." }),
    ];
    let tools = Some(tools()[1..].iter().map(Tool::definition).collect());
    ChatInput { messages, tools, add_generation_prompt: true, ..ChatInput::default() }
}

#[test]
fn a_template_that_knows_no_functions_gets_text() {
    let chatml = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}";
    let render =
        |source: &str| prompt::render(&ChatTemplate::new(source, "", "").expect("a template"), &conversation());
    let expected = render(chatml).expect("it renders");
    insta::assert_snapshot!(expected, @r#"
    <system>You can call these functions, each described by a line of JSON:
    {"name":"add","parameters":{"properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"required":["a","b"]}}

    To call a function, answer with nothing but a line of JSON that has its name and its arguments:
    {"name": "NAME", "arguments": {"ARGUMENT": VALUE}}
    For several calls write several such lines. What they return comes in the next message. If no function helps, answer in plain text.
    <user>1 + 2?
    <assistant>{"name": "add", "arguments": {"a": 1, "b": 2}}
    <user>add returned: 3

    Thanks.
    "#);
    let no_system =
        format!("{{% if messages[0].role == 'system' %}}{{{{ raise_exception('no system') }}}}{{% endif %}}{chatml}");
    let without = render(&no_system).expect("it renders");
    assert!(without.starts_with("<user>You can call") && without.contains("plain text.\n\n1 + 2?"), "{without}");
}

#[test]
fn templates_get_calls_as_they_want_them() {
    let render =
        |source: &str| prompt::render(&ChatTemplate::new(source, "", "").expect("a template"), &conversation());
    // Arguments as a text, where joining an object to a text fails.
    let text = "{{ tools[0].function.name }}<tool_call>{% for m in messages %}{% for c in m.tool_calls %}{{ '=' + c.function.arguments }}{% endfor %}{% endfor %}";
    assert_eq!(render(text).expect("it renders"), "add<tool_call>={\"a\":1,\"b\":2}");
    // No place for calls: as the model writes them.
    let plain = "{% if tools %}<tool_call>{% endif %}{% for m in messages %}[{{ m.content }}]{% endfor %}";
    let expected = "<tool_call>[1 + 2?][<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}\n</tool_call>][3][Thanks.]";
    assert_eq!(render(plain).expect("it renders"), expected);
    // Ids of nine letters and digits.
    let ids = "{% if tools %}[TOOL_CALLS]{% endif %}{% for m in messages %}{{ m.tool_call_id }}{% for c in m.tool_calls %}{{ c.id }}={% endfor %}{% endfor %}";
    let rendered = render(ids).expect("it renders");
    let (call, result) = rendered.trim_start_matches("[TOOL_CALLS]").split_once('=').expect("a call and a result");
    assert!(call == result && call.len() == 9, "{rendered}");
}

#[test]
fn calls_without_the_marks_of_their_form_are_read() {
    let call = r#"{"name": "add", "arguments": {"a": 1}}"#;
    let one = vec![("add".to_owned(), r#"{"a": 1}"#.to_owned())];
    let two = vec![one[0].clone(), ("get_time".to_owned(), "{}".to_owned())];
    let second = r#"{"name": "get_time", "arguments": {}}"#;
    for (answer, said, calls) in [
        (call.to_owned(), "", &one),
        (format!("```json\n{call}\n```"), "", &one),
        (format!("```\n{call}\n```\n"), "", &one),
        (format!("I add them.\n```json\n{call}\n```"), "I add them.", &one),
        (format!("<tools>\n{call}\n</tools>"), "", &one),
        (format!("<function_call> {call} </function_call>"), "", &one),
        (format!("[{call}, {second}]"), "", &two),
        (format!("{call}\n{second}"), "", &two),
        (format!("```json\n[{call},\n{second}]\n```"), "", &two),
        (
            r#"{"type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}}"#.to_owned(),
            "",
            &vec![("add".to_owned(), r#"{"a":1}"#.to_owned())],
        ),
    ] {
        for size in [1, 3, 1000] {
            let chars: Vec<char> = answer.chars().collect();
            let pieces: Vec<String> = chars.chunks(size).map(|piece| piece.iter().collect()).collect();
            let (text, found) = read(ToolFormat::Hermes, pieces.iter().map(String::as_str));
            assert_eq!((text.trim(), &found), (said, calls), "{answer} in pieces of {size}");
        }
    }
    // What names no offered function, or stands within a text, is none.
    for answer in [
        r#"{"name": "rm", "arguments": {}}"#,
        r#"Send {"name": "add", "arguments": {"a": 1}} to it."#,
        "```json\n{\"a\": 1}\n```",
        "```python\nadd(1)\n```",
    ] {
        let (text, found) = read(ToolFormat::Hermes, [answer]);
        assert_eq!((text.as_str(), found.len()), (answer, 0), "{answer}");
    }
}

#[test]
fn the_beginning_of_a_call_that_was_cut_is_no_text() {
    for (answer, said) in
        [("<tool_call>\n{\"na", ""), ("So:\n<tool_ca", "So:"), ("\n<tool_call>\n{\"", ""), ("1 < 2", "1 < 2")]
    {
        let mut reader = CallReader::new(ToolFormat::Hermes, names());
        let events = [reader.push(answer), reader.finish_cut()].concat();
        let text: String = events
            .iter()
            .map(|event| if let CallEvent::Text(text) = event { text.as_str() } else { panic!("{event:?}") })
            .collect();
        assert_eq!(text, said, "{answer}");
    }
}
