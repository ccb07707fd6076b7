//! Expressions drawn by chance against Jinja2's results (`testdata/templates/generate.py` made them).

use serde_json::Value;

use super::*;

const CASES: &str = include_str!("../../../testdata/templates/cases.jsonl");
const CONTEXT: &str = include_str!("../../../testdata/templates/context.json");

#[test]
fn drawn_expressions_are_jinjas_or_refused() {
    let mut extra: serde_json::Map<String, Value> = serde_json::from_str(CONTEXT).expect("an object");
    let messages = extra.remove("messages").expect("it has messages");
    let input = ChatInput { extra, ..input(messages) };
    let (mut n_equal, mut n_refused) = (0, 0);
    for line in CASES.lines() {
        let case: Value = serde_json::from_str(line).expect("an object");
        let source = case["template"].as_str().expect("a text");
        match (render(source, &input), case["expected"].as_str()) {
            (Ok(text), Some(expected)) => {
                assert_eq!(text, expected, "{source}");
                n_equal += 1;
            }
            (Ok(text), None) => panic!("Jinja2 refuses {source}, not {text}"),
            (Err(error), Some(_)) => {
                assert!(!error.to_string().contains('\n'), "{error}");
                n_refused += 1;
            }
            (Err(_), None) => {}
        }
    }
    assert!(n_equal >= 350 && n_refused <= 4, "{n_equal} equal, {n_refused} refused");
}

#[test]
fn faults_that_strangers_met() {
    for (source, expected) in [
        ("{% set content = '' %}[{{ content and content | trim }}]", "[]"),
        ("{{ '' and 'b' }}|{{ 0 and 1 }}|{{ [] and 1 }}|{{ none and 1 }}|{{ 1 and none }}", "|0|[]|None|None"),
        ("{{ '' or 0 }}|{{ 0 or [] }}|{{ not '' and 'x' }}|{{ (1 and 'a') or 'b' }}", "0|[]|x|a"),
        ("{{ ['a','b','c'][2:0:-1] | list }}", "['c', 'b']"),
        ("{% set a=[3,1,2] %}{{ a[:0:-1] | list }}|{{ a[:-3:-1] | list }}", "[2, 1]|[2, 1]"),
        ("{% set x = [[1,2],[3,4]] %}{{ x.1.0 }}", "3"),
        ("{{ '%s is %d' % ('a', 3) }}", "a is 3"),
        ("{{ 'a,b,c'.rsplit(',', 1) }}", "['a,b', 'c']"),
        ("{{ 'pre_ab'.removeprefix('pre_') }}", "ab"),
        ("{{ messages[0].content | truncate(5) }}", "Hi"),
        ("{{ 2.1 | round(0, 'ceil') }}", "3.0"),
        ("{{ 'll' | replace('l', 'x', 1) }}", "xl"),
        ("{{ none | selectattr('a') | list }}{{ 0 | map('upper') | list }}", "[][]"),
        ("{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 in [1] in [[1]] }}", "True False True"),
        ("{{ ('<a>' | safe) + '<b>' }} {{ ['x' | safe] }}", "<a>&lt;b&gt; [Markup('x')]"),
    ] {
        check(source, serde_json::json!("Hi"), expected);
    }
    for (source, line) in [
        ("{{ 'a'.encode() }}", "the method 'encode' of texts is not supported"),
        ("{{ [1].append(2) }}", "the method 'append' of list is not supported"),
        ("{{ messages | map('upper') }}", "a generator cannot be printed"),
        ("{{ {'a': 1}.items }}", "cannot be printed"),
        ("{{ none[1:] }}", "'NoneType' object is not subscriptable"),
        ("{{ nothing in 'abc' }}", "requires string as left operand"),
        ("{% for x in none %}{% endfor %}", "'NoneType' object is not iterable"),
    ] {
        let error = render(source, &input(serde_json::json!([]))).expect_err(source).to_string();
        assert!(error.contains(line), "{source}: {error}");
    }
}
