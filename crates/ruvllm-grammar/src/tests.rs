//! Grammars over a vocabulary of single bytes and over a real one.

use std::sync::Arc;

use proptest::prelude::*;
use ruvllm_text::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::error::NO_TEXT;
use super::*;

/// A compiler over SmolLM2's vocabulary.
fn compiler() -> (GrammarCompiler, Arc<Tokenizer>) {
    let file = ruvllm_gguf::GgufFile::open(&ruvllm_testkit::real_model("smollm2:135m")).expect("a GGUF file");
    let tokenizer = Arc::new(Tokenizer::from_metadata(file.metadata()).expect("a tokenizer"));
    (GrammarCompiler::new(&tokenizer, tokenizer.vocab_len()).expect("it has an end"), tokenizer)
}

pub(crate) fn main_compiler() -> &'static (GrammarCompiler, Arc<Tokenizer>) {
    static COMPILER: std::sync::OnceLock<(GrammarCompiler, Arc<Tokenizer>)> = std::sync::OnceLock::new();
    COMPILER.get_or_init(compiler)
}

/// Writes an answer, choosing among the allowed tokens by `pick` (given the number of them); `None` if it is not complete
/// after 400 tokens.
fn write(grammar: &Grammar, mut pick: impl FnMut(usize) -> usize) -> Option<String> {
    let (_, tokenizer) = main_compiler();
    let mut constraint = grammar.start();
    let mut ids = Vec::new();
    for _ in 0..400 {
        if constraint.is_complete() {
            return Some(tokenizer.decode(&ids, Default::default()));
        }
        let id = constraint.forced().unwrap_or_else(|| {
            constraint.compute_mask().expect("cheap");
            let mut logits = vec![0.0; tokenizer.vocab_len()];
            constraint.apply_mask(&mut logits);
            let allowed: Vec<usize> = (0..logits.len()).filter(|&id| logits[id] == 0.0).collect();
            // An end is taken where there is one, so that answers are short.
            let end = allowed.iter().find(|&&id| tokenizer.is_end_of_generation(id as u32));
            *end.unwrap_or_else(|| &allowed[pick(allowed.len())]) as u32
        });
        constraint.accept(id).expect("it was allowed");
        ids.push(id);
    }
    None
}

fn compile(source: &GrammarSource) -> Grammar {
    main_compiler().0.compile(source).unwrap_or_else(|error| panic!("{source:?}: {error}"))
}

/// Returns whether a text, by tokens as the model would write it, is a whole answer.
fn allows(grammar: &Grammar, text: &str) -> bool {
    let (_, tokenizer) = main_compiler();
    let ids = tokenizer.encode(text, Default::default()).expect("it encodes");
    let mut constraint = grammar.start();
    let is_taken = ids.iter().all(|&id| constraint.accept(id).is_ok());
    is_taken && (constraint.is_complete() || constraint.is_valid())
}

#[track_caller]
fn check(source: GrammarSource, valid: &[&str], invalid: &[&str]) {
    let grammar = compile(&source);
    valid.iter().for_each(|text| assert!(allows(&grammar, text), "{source:?} must allow {text:?}"));
    invalid.iter().for_each(|text| assert!(!allows(&grammar, text), "{source:?} must not allow {text:?}"));
}

#[test]
fn every_kind_of_grammar_allows_what_it_says() {
    check(GrammarSource::JsonObject, &["{}", "{\"a\": [1, null]}"], &["[]", "{", "{\"a\"}"]);
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}, "required": ["n"],
                        "additionalProperties": false});
    check(
        GrammarSource::JsonSchema(schema),
        &["{\"n\": 3}", "{ \"n\":42 }"],
        &["{}", "{\"n\": 2}", "{\"n\": 3, \"m\": 1}"],
    );
    check(GrammarSource::Regex("[a-c]{2,3}\\d".into()), &["ab1", "abc9"], &["a1", "abcc1", "ab", "ab1 "]);
    check(
        GrammarSource::Choice(vec!["yes".into(), "no".into(), "no \"way\"".into()]),
        &["yes", "no", "no \"way\""],
        &["ye", "y"],
    );
    check(GrammarSource::Lark("start: \"a\" start? \"b\"\n".into()), &["ab", "aabb"], &["a", "aab", "abb"]);
}

const CHESS: &str = r#"
# moves, numbered
root   ::= (number " " move " " move "\n"){1,2}
number ::= [1-9] [0-9]? "."
move   ::= ([NBRQK]? [a-h] [1-8] | castle) [+#]?
castle ::= "O-O" "-O"?
"#;

const JSON: &str = r#"
root    ::= value
value   ::= object | array | string | number | ("true" | "false" | "null") ws
object  ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array   ::= "[" ws ( value
              ("," ws value)* )? "]" ws
string  ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt/] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number  ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [1-9] [0-9]{0,15})? ws
ws      ::= | " " | "\n" [ \t]{0,20}
"#;

#[test]
fn llama_cpp_grammars_are_read() {
    check(
        GrammarSource::Gbnf(CHESS.into()),
        &["1. e4 e5\n", "12. Nf3 O-O-O+\n2. a1 b2\n"],
        &["1. e4\n", "0. e4 e5\n", "1. z4 e5\n"],
    );
    check(
        GrammarSource::Gbnf(JSON.into()),
        &["[]", "{\"a\": [1, 2.5e3, \"x\\n\\u00e9\"],\n \"b\":null}"],
        &["[1,]", "{a:1}", "\"\n\""],
    );
    check(
        GrammarSource::Gbnf("root ::= [^a-c\\]-] . | \"\\u00e9\\t\" | [-x]{3}".into()),
        &["dé", "é\t", "x-x"],
        &["aé", "]x", "-x", "xx-x"],
    );
    for (text, line) in [
        ("a ::= \"x\"", "it has no rule 'root'"),
        ("root ::= other", "it has no rule 'other', which another one uses"),
        ("root ::= \"x", "line 1: it ends in the middle of a rule"),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2: the rule 'root' stands twice"),
        ("root ::= [0-9]{3,2}", "line 1: '{3,2}' is no number of repetitions up to 10000"),
        ("root ::= <[1000]>", "line 1: references to tokens are not supported; write their text"),
        ("root = \"a\"", "line 1: '=' stands where ':' is due"),
        ("root ::= []", "line 1: a class is empty"),
        ("root ::= \"\\q\"", "line 1: '\\q' is no escape"),
        (&format!("root ::= [a]{}", "*".repeat(400_000)), "line 1: more than 64 repetitions stand behind one another"),
    ] {
        let error = main_compiler().0.compile(&GrammarSource::Gbnf(text.into())).expect_err(text);
        assert_eq!(
            (error.kind(), error.to_string()),
            (GrammarErrorKind::Invalid, format!("the grammar cannot be used: {line}"))
        );
    }
}

#[test]
fn what_is_not_supported_is_named() {
    let error = |schema: Value| {
        let error = main_compiler().0.compile(&GrammarSource::JsonSchema(schema)).expect_err("not supported");
        assert_eq!(error.kind(), GrammarErrorKind::Invalid);
        error.to_string()
    };
    assert!(error(json!({"$ref": "https://example.com/a.json"})).contains("example.com"));
    assert!(error(json!({"$ref": "#/$defs/none"})).contains("none"));
    let strict = json!({"strict_formats": true, "properties": {"a": {"type": "string", "format": "colour"}}});
    assert!(error(strict).contains("'colour'"));
    assert!(error(json!({"type": "whole"})).contains("'whole'"));
    assert!(error(json!({"x-guidance": {"lenient": true}})).contains("x-guidance"));
    assert!(error(json!(7)).contains("neither an object nor a boolean"));
    assert!(error(json!(false)).starts_with("the grammar cannot be used"));
}

#[test]
fn what_is_wrong_with_a_regular_expression_is_said() {
    for (text, fault) in [("(", "unclosed group"), ("[z-a]", "range"), ("a{3,2}", "repetition")] {
        let error = main_compiler().0.compile(&GrammarSource::Regex(text.into())).expect_err(text).to_string();
        assert!(error.contains(fault) && error.lines().count() == 1, "{text}: {error}");
    }
}

/// The rules `r0` to `r{n}`, each made of the next one, and `last` in the last.
fn chain(is: &str, before: &str, n: usize, last: &str) -> String {
    let rules = (0..n).map(|i| format!("r{i} {is} {before} r{}\n", i + 1));
    rules.chain([format!("r{n} {is} {last}\n")]).collect()
}

#[test]
fn long_chains_of_rules_are_compiled_or_refused() {
    let gbnf =
        |before: &str, n, last: &str| GrammarSource::Gbnf(format!("root ::= r0\n{}", chain("::=", before, n, last)));
    let lark = |before: &str, n, last: &str| GrammarSource::Lark(format!("start: r0\n{}", chain(":", before, n, last)));
    check(gbnf("", 8_000, "\"a\""), &["a"], &["b"]);
    check(lark("", 8_000, "\"a\""), &["a"], &["b"]);
    // Every rule leads back to itself.
    check(gbnf("", 8_000, "\"a\" | \"(\" root \")\""), &["a", "(a)", "((a))"], &["(a", "b"]);
    let parts = |n: usize| -> Value {
        let part = |i| json!({"type": "array", "prefixItems": [{"$ref": format!("#/$defs/{}", i + 1)}], "minItems": 1});
        let last = [(n.to_string(), json!({"type": "null"}))];
        let parts: serde_json::Map<String, Value> = (0..n).map(|i| (i.to_string(), part(i))).chain(last).collect();
        json!({"$ref": "#/$defs/0", "$defs": parts})
    };
    compile(&GrammarSource::JsonSchema(parts(3_000)));
    let wide: serde_json::Map<String, Value> = (0..10_000).map(|i| (format!("p{i}"), json!({}))).collect();
    let groups = |n| format!("{}r1{}", "(".repeat(n), ")".repeat(n));
    let one_line: String = (0..1_200).map(|i| format!("r{i}: {} -> x ", groups(28))).collect();
    for (source, line) in [
        (gbnf("", 28_000, "\"a\""), "it has 28003 rules, and 8192"),
        (lark("", 28_000, "\"a\""), "it has 28002 rules, and 8192"),
        (
            GrammarSource::Lark(format!("start: r0\n{one_line}")),
            "it has 1201 rules, 34801 with their groups and schemas",
        ),
        (GrammarSource::Lark(format!("start: %json {}", parts(3_000))), "it has 1 rules, 384287 with"),
        (GrammarSource::JsonSchema(parts(5_000)), "the schema refers to 5001 parts and is 5 deep, 25010 together"),
        (GrammarSource::JsonSchema(json!({"properties": wide})), "an object of the schema has 10000 entries"),
    ] {
        let error = main_compiler().0.compile(&source).expect_err(line);
        assert_eq!(error.kind(), GrammarErrorKind::Invalid);
        let error = error.to_string();
        assert!(error.contains(line) && error.contains("are the most; ") && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn rules_that_lead_back_to_themselves_stay_rules() {
    let lark = |text: &str| gbnf::to_lark(text).expect("well formed");
    insta::assert_snapshot!(lark("root ::= a | t\na ::= \"(\" b\nb ::= a? \")\"\nt ::= u u\nu ::= [x]"), @r#"
    start: rule_2
    rule_0: ("(" rule_1)
    rule_1: ((rule_0)? ")")
    rule_2: ((rule_0) | (TERM_3))
    TERM_3: (TERM_4 TERM_4)
    TERM_4: (/[\x{78}]/)
    "#);
    insta::assert_snapshot!(lark("root ::= t\nt ::= \"a\" t | \"b\""), @r#"
    start: rule_0
    rule_0: (rule_1)
    rule_1: (("a" rule_1) | ("b"))
    "#);
}

#[test]
fn a_grammar_that_allows_no_text_is_said_to() {
    for source in [
        GrammarSource::Gbnf("root ::= root".into()),
        GrammarSource::Gbnf("root ::= a\na ::= b\nb ::= a".into()),
        GrammarSource::Lark("start: start".into()),
        GrammarSource::JsonSchema(json!({"$ref": "#"})),
        GrammarSource::JsonSchema(json!({"allOf": [{"$ref": "#"}]})),
        GrammarSource::Regex(r"[^\s\S]".into()),
    ] {
        let error = main_compiler().0.compile(&source).expect_err("no text");
        assert_eq!(
            (error.kind(), error.to_string()),
            (GrammarErrorKind::Invalid, format!("the grammar cannot be used: {NO_TEXT}"))
        );
    }
    // It shows later where some text comes first.
    let mut constraint = compile(&GrammarSource::Gbnf("root ::= [x] a\na ::= a".into())).start();
    let id = main_compiler().1.encode("x", Default::default()).expect("it encodes")[0];
    let error =
        constraint.accept(id).and_then(|()| constraint.compute_mask()).expect_err("nothing follows").to_string();
    assert_eq!(
        error,
        "the grammar cannot be used: nothing can follow what is written; give the rules that are used an end"
    );
}

#[test]
fn hostile_grammars_cost_little() {
    let nested = |open: &str, inside: &str, close: &str, n: usize| open.repeat(n) + inside + &close.repeat(n);
    let mut deep = json!({});
    for _ in 0..100 {
        deep = json!({"type": "array", "items": deep, "minItems": 1});
    }
    let wide: Vec<Value> = (0..20_000).map(|i| json!({"const": format!("word {i}")})).collect();
    let start = std::time::Instant::now();
    for source in [
        GrammarSource::Regex(nested("(", "a", "){100}", 8)),
        GrammarSource::Regex("(a*)*".repeat(2000)),
        GrammarSource::Regex(nested("(", "a", ")", 100_000)),
        GrammarSource::Regex("(.*a){1,500}.{400}".into()),
        GrammarSource::Lark(format!("start: {}", nested("(", "\"a\"", ")", 100_000))),
        GrammarSource::Lark("start: start start | \"a\" | \"\"\n".into()),
        GrammarSource::Gbnf(format!("root ::= {}", nested("(", "\"a\"", ")", 100_000))),
        GrammarSource::Gbnf(format!("root ::= {}", nested("(", "\"a\"", "){9999}", 5))),
        GrammarSource::JsonSchema(json!({"type": "string", "minLength": 900_000, "maxLength": 1_000_000})),
        GrammarSource::JsonSchema(json!({"type": "array", "minItems": 1_000_000, "items": {"type": "number"}})),
        GrammarSource::JsonSchema(json!({"anyOf": wide})),
        GrammarSource::JsonSchema(deep),
        GrammarSource::JsonSchema(json!({"$ref": "#"})),
        GrammarSource::Choice(vec!["x".repeat(600 << 10)]),
    ] {
        // Refused, or compiled and then bounded: either is fine, a crash or a wait is not.
        if let Ok(grammar) = main_compiler().0.compile(&source) {
            let mut constraint = grammar.start();
            for _ in 0..8 {
                let mut logits = vec![0.0; main_compiler().1.vocab_len()];
                let Ok(()) = constraint.compute_mask() else { break };
                constraint.apply_mask(&mut logits);
                let id = logits.iter().position(|&logit| logit == 0.0).expect("a mask allows something");
                if constraint.accept(id as u32).is_err() || constraint.is_complete() {
                    break;
                }
            }
        }
    }
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}

/// A schema made by chance, of what is supported.
fn schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "boolean"})),
        Just(json!({"type": "null"})),
        Just(json!({"enum": ["red", "green", 7, null]})),
        (0i64..50, 50i64..900).prop_map(|(low, high)| json!({"type": "integer", "minimum": low, "maximum": high})),
        (0usize..3, 3usize..9).prop_map(|(low, high)| json!({"type": "string", "minLength": low, "maxLength": high})),
        Just(json!({"type": "string", "pattern": "^[a-f]+-[0-9]{2}$"})),
        Just(json!({"type": "string", "format": "date"})),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            (proptest::collection::btree_map("[a-d]{1,3}", inner.clone(), 1..4), any::<bool>()).prop_map(|(properties, all)| {
                let required: Vec<&String> = properties.keys().filter(|key| all || key.len() > 1).collect();
                json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
            }),
            (inner.clone(), 0usize..3).prop_map(|(items, n)| json!({"type": "array", "items": items, "minItems": n, "maxItems": n + 2})),
            (inner.clone(), inner).prop_map(|(a, b)| json!({"anyOf": [a, b]})),
        ]
    })
}

/// A validator of its own, of exactly what [`schema`] makes.
fn is_valid(schema: &Value, value: &Value) -> bool {
    let bound = |key: &str, n: f64| {
        let least = schema[key.replace('*', "min")].as_f64().is_none_or(|least| n >= least);
        least && schema[key.replace('*', "max")].as_f64().is_none_or(|most| n <= most)
    };
    if let Some(any) = schema["anyOf"].as_array() {
        return any.iter().any(|schema| is_valid(schema, value));
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.contains(value);
    }
    match (schema["type"].as_str().expect("a type"), value) {
        ("boolean", Value::Bool(_)) | ("null", Value::Null) => true,
        ("integer", Value::Number(n)) => n.is_i64() && bound("*imum", n.as_f64().expect("finite")),
        ("string", Value::String(text)) => {
            let form = match (schema["pattern"].as_str(), schema["format"].as_str()) {
                (Some(pattern), _) => pattern,
                (_, Some(_)) => r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$",
                _ => "",
            };
            bound("*Length", text.chars().count() as f64) && regex::Regex::new(form).expect("a pattern").is_match(text)
        }
        ("array", Value::Array(items)) => {
            bound("*Items", items.len() as f64) && items.iter().all(|item| is_valid(&schema["items"], item))
        }
        ("object", Value::Object(object)) => {
            let required = schema["required"].as_array().expect("a list");
            required.iter().all(|key| object.contains_key(key.as_str().expect("a name")))
                && object.iter().all(|(key, value)| schema["properties"].get(key).is_some_and(|s| is_valid(s, value)))
        }
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is drawn among the allowed tokens: what is complete is valid.
    #[test]
    fn what_is_written_is_valid(schema in schema(), seed in any::<u64>()) {
        let grammar = compile(&GrammarSource::JsonSchema(schema.clone()));
        let mut state = seed | 1;
        let text = write(&grammar, |n| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        });
        // White space may go on for long.
        prop_assume!(text.is_some());
        let text = text.expect("assumed");
        let value: Value = serde_json::from_str(&text).map_err(|e| TestCaseError::fail(format!("{text:?}: {e}")))?;
        prop_assert!(is_valid(&schema, &value), "{schema}: {text}");
    }
}
