//! Requests against tables.

use ruvllm_witness::decimal;
use serde_json::json;

use super::*;

const INNER: &[Field] = &[required("a", Kind::Bool, "a flag"), optional("b", Kind::Int(0, 9), "a digit")];
const TABLE: &[Field] = &[
    required("text", Kind::Text, "some text"),
    optional("inner", Kind::Object(INNER), "more"),
    optional("list", Kind::List(&Kind::Object(INNER), 0, 2), "several"),
    optional("word", Kind::Word(&["one", "two"]), "a word"),
    optional("only", Kind::Only("0", "there is no other"), "nothing"),
    optional(
        "either",
        Kind::Either(&[Kind::Text, Kind::List(&Kind::Int(0, 9), 1, 4), Kind::List(&Kind::Text, 1, 4)]),
        "one of several",
    ),
    optional("free", Kind::Map(&Kind::Text), "labels"),
    optional("tagged", Kind::Tagged(&[("x", X), ("y", Y)]), "one of two"),
    optional("known", Kind::List(&Kind::Known(&[("x", X)]), 0, 3), "those of type x"),
    optional("own_name", Kind::Int(0, 9), "a digit").also(&["their_name"]).renamed(&["former_name"]),
    unheeded("label", Kind::Any, "nothing"),
];
const X: &[Field] = &[optional("type", Kind::Word(&["x"]), "the first"), required("n", Kind::Bool, "a flag")];
const Y: &[Field] = &[required("type", Kind::Word(&["y"]), "the second"), required("m", Kind::Bool, "a flag")];

fn line(value: Value) -> String {
    match ValidBody::check(value, TABLE, &[("old", "use text")]) {
        Ok(_) => "ok".to_owned(),
        Err(error) => format!("{}: {}", error.param.unwrap_or_default(), error.message),
    }
}

#[test]
fn what_is_in_the_table_is_taken() {
    for value in [
        json!({ "text": "x" }),
        json!({ "text": "x", "inner": { "a": true, "b": 3.0 }, "list": [], "word": "two", "only": 0.0, "either": "x" }),
        json!({ "text": "x", "inner": null, "old": null, "either": [1, 2], "free": { "k": "v" } }),
        json!({ "text": "x", "either": ["1"], "list": [{ "a": false }] }),
        json!({ "text": "x", "tagged": { "n": true } }),
        json!({ "text": "x", "tagged": { "type": "y", "m": true } }),
    ] {
        assert_eq!(line(value.clone()), "ok", "{value}");
    }
}

#[test]
fn what_is_not_is_named() {
    insta::assert_snapshot!(line(json!([])), @": the body is a list; send a JSON object");
    insta::assert_snapshot!(line(json!({})), @"text: 'text' is missing: some text");
    insta::assert_snapshot!(line(json!({ "text": "x", "txet": 1 })), @"txet: 'txet' is no field of this request; is 'text' meant?");
    insta::assert_snapshot!(line(json!({ "text": "x", "old": 1 })), @"old: 'old' is not supported: use text");
    insta::assert_snapshot!(line(json!({ "text": 1 })), @"text: 'text' is 1; it must be a text");
    insta::assert_snapshot!(line(json!({ "text": "x", "inner": { "b": 10 } })), @"inner.b: 'inner.b' is 10; it must be a whole number from 0 to 9");
    insta::assert_snapshot!(line(json!({ "text": "x", "inner": {} })), @"inner.a: 'inner.a' is missing: a flag");
    insta::assert_snapshot!(line(json!({ "text": "x", "list": [{ "a": true }, { "a": 1 }] })), @"list[1].a: 'list[1].a' is 1; it must be true or false");
    insta::assert_snapshot!(line(json!({ "text": "x", "list": [1, 2, 3] })), @"list: 'list' is a list; it must be a list of 0 to 2, not of 3");
    insta::assert_snapshot!(line(json!({ "text": "x", "word": "three" })), @r#"word: 'word' is "three"; it must be one of one, two"#);
    insta::assert_snapshot!(line(json!({ "text": "x", "only": 1 })), @"only: 'only' is 1; only 0 is supported: there is no other");
    insta::assert_snapshot!(line(json!({ "text": "x", "either": [1, "2"] })), @r#"either[1]: 'either[1]' is "2"; it must be a whole number from 0 to 9"#);
    insta::assert_snapshot!(line(json!({ "text": "x", "either": true })), @"either: 'either' is true; it must be a text, or a list, each a whole number from 0 to 9, or a list, each a text");
    insta::assert_snapshot!(line(json!({ "text": "x", "free": { "k": 1 } })), @"free.k: 'free.k' is 1; it must be a text");
    insta::assert_snapshot!(line(json!({ "text": "x", "tagged": { "type": "z" } })), @r#"tagged.type: 'tagged.type' is "z"; it must be one of x, y"#);
    insta::assert_snapshot!(line(json!({ "text": "x", "tagged": { "type": "y", "n": true } })), @"tagged.n: 'tagged.n' is no field of this request; /v1/capabilities lists the fields that are");
}

#[test]
fn other_names_are_taken_and_what_changes_nothing_is_told() {
    let given = |value: Value| ValidBody::check(value, TABLE, &[]);
    let read = given(json!({ "text": "x", "their_name": 3, "stranger": null, "inner": { "a": true, "z": null } }));
    assert_eq!(read.expect("a null asks for nothing").count("own_name"), Some(3));
    assert!(given(json!({ "text": "x", "their_name": 3, "own_name": 3 })).is_ok());
    let both = given(json!({ "text": "x", "their_name": 3, "own_name": 4 })).expect_err("they differ");
    assert_eq!(both.message, "'their_name' and 'own_name' say different things; send one of them");
    let read = given(json!({ "text": "x", "former_name": 3 })).expect("an old name");
    assert_eq!((read.count("own_name"), read.renamed), (Some(3), vec!["former_name is now own_name".to_owned()]));
    let known = json!([{ "type": "x", "n": true }, { "type": "web search!", "q": [1] }, { "type": "web search!" }]);
    let read = given(json!({ "text": "x", "label": { "a": 1 }, "known": known })).expect("left out");
    assert_eq!(read.unheeded, ["label", "known.websearch"]);
}

#[test]
fn numbers_are_shown_as_they_are_written() {
    assert_eq!([0.8, 1.0, 1e-3].map(decimal), [json!(0.8), json!(1.0), json!(0.001)]);
    assert_eq!(decimal(f32::NAN), Value::Null);
}
