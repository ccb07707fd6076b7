//! Soundness and completeness of schemas' grammars (what passes is valid, what is valid passes), by walks through the masks and
//! a validator that has no part in them.

use proptest::prelude::*;
use ruvllm_testkit::escaped_json;
use serde_json::{Value, json};

use super::error::NO_TEXT;
use super::tests::main_compiler;
use super::*;

/// The steps that a walk may take.
const STEPS_MAX: usize = 300;

fn compile(schema: &Value) -> Result<Grammar, GrammarError> {
    main_compiler().0.compile(&GrammarSource::JsonSchema(schema.clone()))
}

/// Goes a way through the masks by chance, with a liking for what closes; `None` if it has no end in time or none was found.
fn walk(grammar: &Grammar, seed: u64) -> Option<String> {
    let (_, tokenizer) = main_compiler();
    let (mut constraint, mut ids, mut state) = (grammar.start(), Vec::new(), seed * 2 + 1);
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let closes =
        |id: u32| tokenizer.token_bytes(id).is_some_and(|bytes| bytes.iter().all(|byte| b"\"}]".contains(byte)));
    for _ in 0..STEPS_MAX {
        if constraint.is_complete() {
            return Some(tokenizer.decode(&ids, Default::default()));
        }
        let id = match constraint.forced() {
            Some(id) => id,
            None => {
                constraint.compute_mask().expect("cheap");
                let n_back = constraint.rewind().ok()?;
                if n_back > 0 {
                    ids.truncate(ids.len() - n_back);
                    continue;
                }
                let mask = constraint.mask.as_ref().expect("it was computed");
                let allowed: Vec<u32> = (0..mask.len() as u32).filter(|&id| mask.is_allowed(id)).collect();
                let end = allowed.iter().find(|&&id| tokenizer.is_end_of_generation(id));
                let liked: Vec<u32> = allowed.iter().copied().filter(|&id| closes(id)).collect();
                match end {
                    Some(&end) if below(2) == 0 => end,
                    _ if !liked.is_empty() && below(3) == 0 => liked[below(liked.len())],
                    _ => allowed[below(allowed.len())],
                }
            }
        };
        if constraint.try_accept(id).expect("it was allowed") {
            ids.push(id);
        }
    }
    None
}

fn allows(grammar: &Grammar, text: &str) -> bool {
    let (_, tokenizer) = main_compiler();
    let ids = tokenizer.encode(text, Default::default()).expect("it encodes");
    grammar.check(&ids) == (ids.len(), true)
}

fn validator(schema: &Value) -> jsonschema::Validator {
    let options = jsonschema::options().should_validate_formats(true).with_format("uri-reference", |_: &str| true);
    options.build(schema).expect("a schema")
}

#[test]
fn forms_let_valid_values_through_in_any_spelling_and_no_others() {
    let forms: Vec<Value> = serde_json::from_str(include_str!("forms.json")).expect("JSON");
    assert!(forms.len() >= 40);
    let mut n_whole = 0;
    for form in &forms {
        let schema = &form["schema"];
        let grammar = compile(schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
        let validator = validator(schema);
        for value in form["valid"].as_array().expect("a list") {
            assert!(validator.is_valid(value), "{schema}: {value} is not valid");
            let pretty = serde_json::to_string_pretty(value).expect("JSON");
            for text in [value.to_string(), pretty, escaped_json(value)] {
                assert!(allows(&grammar, &text), "{schema} must allow {text}");
            }
        }
        for value in form["invalid"].as_array().expect("a list") {
            assert!(!validator.is_valid(value), "{schema}: {value} is valid");
            assert!(!allows(&grammar, &value.to_string()), "{schema} must not allow {value}");
        }
        for seed in 0..6 {
            let Some(text) = walk(&grammar, seed) else { continue };
            n_whole += 1;
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{schema}: {text}: {error}"));
            assert!(validator.is_valid(&value), "{schema} let {text} through");
        }
    }
    assert!(n_whole > 2 * forms.len(), "{n_whole} walks came to an end");
}

#[test]
fn a_key_is_what_a_parser_sees() {
    let schema =
        json!({"type": "object", "properties": {"role": {"const": "user"}, "é": {"const": 1}}, "required": ["role"]});
    let grammar = compile(&schema).expect("a grammar");
    for text in [r#"{"role":"user"}"#, r#"{"role":"user","\u00e9":1}"#, r#"{"role":"user","é":1,"\u00e8":2}"#] {
        assert!(allows(&grammar, text), "{text}");
    }
    for text in [
        r#"{"role":"user","\u0072ole":"admin"}"#,
        r#"{"role":"user","role":"admin"}"#,
        r#"{"role":"user","\u00e9":2}"#,
        r#"{"role":"user","é":1,"\u00E9":2}"#,
        r#"{"role":"user","\ud800":1}"#,
    ] {
        assert!(!allows(&grammar, text), "{text}");
    }
    let free = compile(&json!({"type": "object"})).expect("a grammar");
    assert!(allows(&free, r#"{"\u0072ole\/":"\u0061\uD83D\uDE00"}"#));
    assert!(!allows(&free, r#"{"a":"\uD83D"}"#) && !allows(&free, r#"{"a":"\uDE00\uD83D"}"#));
    // Counted as a parser counts them.
    let two = compile(&json!({"type": "object", "minProperties": 2})).expect("a grammar");
    assert!(allows(&two, r#"{"a":1,"b":2}"#) && !allows(&two, r#"{"a":1,"\u0061":2}"#));
}

/// Schemas of most keywords, in most combinations.
fn schema() -> impl Strategy<Value = Value> {
    let text = || prop_oneof![Just("a"), Just("b"), Just("ab"), Just("é"), Just("a/b")];
    let leaf = prop_oneof![
        Just(json!({})),
        Just(json!({"type": "boolean"})),
        Just(json!({"type": ["null", "string"], "maxLength": 3})),
        proptest::collection::vec(prop_oneof![text().prop_map(Value::from), (0..4).prop_map(Value::from)], 1..4)
            .prop_map(|values| json!({ "enum": values })),
        (-20i64..20, 0i64..90).prop_map(|(low, n)| json!({"type": "integer", "minimum": low, "maximum": low + n})),
        (-20i64..20).prop_map(|n| json!({"type": "number", "exclusiveMaximum": n as f64 / 4.0})),
        (0usize..3, 0usize..5).prop_map(|(low, n)| json!({"type": "string", "minLength": low, "maxLength": low + n})),
        Just(json!({"type": "string", "pattern": "^[a-f]+(-[0-9]{2})?$"})),
        Just(json!({"type": "string", "format": "date"})),
        Just(json!({"type": "integer", "multipleOf": 3})),
    ];
    leaf.prop_recursive(3, 16, 4, move |inner| {
        let names = || proptest::collection::vec(prop_oneof![Just("a"), Just("b"), Just("ab"), Just("é")], 0..3);
        let properties = || proptest::collection::btree_map("a|b|ab|é|a/b", inner.clone(), 0..4);
        prop_oneof![
            3 => (properties(), names(), inner.clone(), any::<bool>()).prop_map(|(properties, required, other, is_open)| {
                let other = if is_open { other } else { json!(false) };
                json!({"type": "object", "properties": properties, "required": unique(required), "additionalProperties": other})
            }),
            1 => (properties(), inner.clone(), 0usize..3, 2usize..4).prop_map(|(properties, matched, min, max)| {
                json!({"type": "object", "properties": properties, "patternProperties": {"^a": matched},
                       "minProperties": min, "maxProperties": max})
            }),
            1 => (names(), names(), properties()).prop_map(|(a, b, properties)| {
                json!({"type": "object", "properties": properties, "dependentRequired": {"a": unique(a), "b": unique(b)}})
            }),
            1 => (inner.clone(), 0usize..3, any::<bool>()).prop_map(|(items, n, is_unique)| {
                json!({"type": "array", "items": items, "minItems": n, "maxItems": n + 2, "uniqueItems": is_unique})
            }),
            1 => (inner.clone(), inner.clone()).prop_map(|(first, contains)| {
                json!({"type": "array", "prefixItems": [first], "contains": contains, "maxItems": 3})
            }),
            2 => (inner.clone(), inner.clone()).prop_map(|(a, b)| json!({ "anyOf": [a, b] })),
            2 => (inner.clone(), inner.clone()).prop_map(|(a, b)| json!({ "oneOf": [a, b] })),
            1 => (inner.clone(), inner.clone()).prop_map(|(a, b)| json!({ "allOf": [a, b] })),
            1 => (inner.clone(), inner.clone()).prop_map(|(a, b)| json!({ "allOf": [a], "not": b })),
            1 => (inner.clone(), inner.clone(), inner).prop_map(|(a, b, c)| json!({ "if": a, "then": b, "else": c })),
        ]
    })
}

fn unique(mut names: Vec<&str>) -> Vec<&str> {
    names.sort_unstable();
    names.dedup();
    names
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is let through is valid by a validator, and was not refused but for what allows nothing.
    #[test]
    fn walks_end_with_valid_values(schema in schema(), seed in any::<u32>()) {
        let grammar = match compile(&schema) {
            Ok(grammar) => grammar,
            Err(error) => {
                prop_assert!(error.to_string().contains(NO_TEXT), "{schema}: {error}");
                return Ok(());
            }
        };
        let validator = validator(&schema);
        for seed in [u64::from(seed), u64::from(seed) + 1] {
            let Some(text) = walk(&grammar, seed) else { continue };
            let value: Value = serde_json::from_str(&text).map_err(|e| TestCaseError::fail(format!("{text:?}: {e}")))?;
            prop_assert!(validator.is_valid(&value), "{schema} let {text} through");
        }
    }
}
