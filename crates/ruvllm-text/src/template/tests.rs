//! Templates against Jinja2's output, limits and hostile sources.

mod generated;
mod memory;

use std::time::{Duration, UNIX_EPOCH};

use serde_json::json;

use super::*;

fn input(messages: serde_json::Value) -> ChatInput {
    let now = Some(UNIX_EPOCH + Duration::from_secs(1_736_944_496));
    ChatInput { messages: messages.as_array().cloned().unwrap_or_default(), now, ..ChatInput::default() }
}

fn render(source: &str, input: &ChatInput) -> Result<String, TextError> {
    ChatTemplate::new(source, "<s>", "</s>")?.render(input)
}

/// Renders with one user message whose content is `content`.
fn check(source: &str, content: serde_json::Value, expected: &str) {
    let input = input(json!([{"role": "user", "content": content}]));
    assert_eq!(render(source, &input).unwrap(), expected, "{source}");
}

#[test]
fn blocks_leave_no_white_space() {
    let source =
        "{% for m in messages %}\n  {% if m.role == 'user' %}\n[{{ m.content }}]\n  {% endif %}\n{% endfor %}\n\n";
    check(source, json!("hi"), "[hi]\n");
    check("{{ bos_token }}|{{ eos_token }}\n", json!(""), "<s>|</s>");
}

#[test]
fn values_print_as_in_python() {
    let v = "{{ messages[0].content }}";
    check(v, json!(true), "True");
    check(v, json!(null), "None");
    check(
        v,
        json!({"b": [1, 2.0, "it's", "a\n"], "a": {"x": false}}),
        "{'b': [1, 2.0, \"it's\", 'a\\n'], 'a': {'x': False}}",
    );
    check("{{ messages[0].nothing }}|{{ messages[0].content | string }}", json!([null]), "|[None]");
    check(v, json!([1e-7, 1.5e300, 0.0001, 123456789.0, 1e16]), "[1e-07, 1.5e+300, 0.0001, 123456789.0, 1e+16]");
}

#[test]
fn tojson_is_pythons() {
    let value = json!({"z": "é\"\\\n\u{1}</b>", "a": [1, 2.5, true, null], "e": {}, "l": []});
    let line = "{\"z\": \"é\\\"\\\\\\n\\u0001</b>\", \"a\": [1, 2.5, true, null], \"e\": {}, \"l\": []}";
    check("{{ messages[0].content | tojson }}", value.clone(), line);
    let lines = "{\n  \"a\": [\n    1\n  ],\n  \"e\": {}\n}";
    check("{{ messages[0].content | tojson(indent=2) }}", json!({"a": [1], "e": {}}), lines);
    check("{{ messages[0].content | tojson(separators=(',', ':')) }}", json!({"a": [1, 2]}), "{\"a\":[1,2]}");
    check(
        "{{ messages[0].content | tojson(ensure_ascii=true, sort_keys=true) }}",
        json!({"b": "é", "a": "🙂"}),
        "{\"a\": \"\\ud83d\\ude42\", \"b\": \"\\u00e9\"}",
    );
}

#[test]
fn pythons_methods_and_tests_work() {
    check("{{ messages[0].content.strip().split(' ')[-1].upper() }}", json!("  a b "), "B");
    check("{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}", json!("x"), "role=user;content=x;");
    check("{{ messages[0].get('no', 'none') }}", json!(""), "none");
    check("{{ tools is iterable }} {{ 'a' is sequence }} {{ messages is iterable }}", json!(""), "False True True");
    check("{{ tools is none }} {{ documents is none }} {{ x is defined }}", json!(""), "True True False");
    check(
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        json!(""),
        "02",
    );
    check(
        "{% set n = namespace(x=1) %}{% for m in messages %}{% set n.x = n.x + 1 %}{% endfor %}{{ n.x }}",
        json!(""),
        "2",
    );
    check(
        "{% for m in messages %}{%- generation -%} {{ m.content }} {%- endgeneration %}{% endfor %}",
        json!("x"),
        "x",
    );
}

#[test]
fn time_and_variables_come_from_the_caller() {
    check("{{ strftime_now('%d %B %Y') }}", json!(""), "15 January 2025");
    let mut input = input(json!([]));
    input.extra.insert("enable_thinking".to_owned(), json!(false));
    input.extra.insert("bos_token".to_owned(), json!("B"));
    input.tools = Some(json!([{"name": "f"}]));
    input.add_generation_prompt = true;
    let source = "{{ bos_token }}{{ enable_thinking }}{{ tools[0].name }}{{ add_generation_prompt }}";
    assert_eq!(render(source, &input).unwrap(), "BFalsefTrue");
}

#[test]
fn errors_say_what_the_template_said() {
    let check = |source: &str, part: &str| {
        let error = render(source, &input(json!([{"role": "user", "content": "x"}]))).unwrap_err();
        assert_eq!(error.kind(), TextErrorKind::Prompt);
        assert!(error.to_string().contains(part), "{source}: {error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    };
    check("{{ raise_exception('roles must alternate') }}", "refuses the messages: roles must alternate");
    check("{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{{ m() }}", "refuses the messages: deep");
    check("\n{{ a.b }}", "at line 2");
    check("{% if %}", "does not compile");
    check("{{ strftime_now | tojson }}", "tojson");
}

#[test]
fn hostile_templates_are_stopped() {
    let empty = input(json!([]));
    let loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    assert!(render(loops, &empty).unwrap_err().to_string().contains("fuel"));
    let deep = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
    assert!(render(deep, &empty).unwrap_err().to_string().contains("recursion"));
    let long = "{% for a in range(9999) %}{{ 'x' * 99999 }}{% endfor %}";
    assert!(render(long, &empty).unwrap_err().to_string().contains("longer than"));
    let nested = format!("{}{}", "{% if 1 %}".repeat(5000), "{% endif %}".repeat(5000));
    let _ = ChatTemplate::new(&nested, "", "").and_then(|template| template.render(&empty));
}

/// Compiles on a stack as small as that of a server's threads.
fn compile_error(source: String) -> String {
    let thread = std::thread::Builder::new().stack_size(2 << 20);
    let compile = move || match ChatTemplate::new(&source, "", "") {
        Ok(template) => {
            template.reads("tools");
            String::new()
        }
        Err(error) => error.to_string(),
    };
    thread.spawn(compile).expect("a thread").join().expect("it does not overflow")
}

#[test]
fn deep_expressions_are_refused_before_they_are_compiled() {
    let n = 100_000;
    let forms = [
        format!("{{{{ 1{} }}}}", "+1".repeat(n)),
        format!("{{{{ {}1 }}}}", "not ".repeat(n)),
        format!("{{{{ {}1 }}}}", "-".repeat(n)),
        format!("{{{{ x{} }}}}", "|string".repeat(n)),
        format!("{{{{ x{} }}}}", ".a".repeat(n)),
        format!("{{{{ x{} }}}}", "[0]".repeat(n)),
        format!("{{{{ x{} }}}}", "()".repeat(n)),
        format!("{{{{ {}0 }}}}", "1 if 0 else ".repeat(n)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(n)),
        format!("{{% set x = 1{} %}}", " and 1".repeat(n)),
        format!("{{% if 1{} %}}{{% endif %}}", " == 1".repeat(n)),
        format!("{{{{ 'a'{} }}}}", " ~ 'a'".repeat(n)),
        format!("{{{{ 1{} }}}}", " is defined".repeat(n)),
    ];
    for form in forms {
        let error = compile_error(form.clone());
        assert!(error.starts_with("the chat template does not compile: "), "{}: {error}", &form[..20]);
        assert!(error.contains("nested too deeply"), "{}: {error}", &form[..20]);
    }
    // As deep as it may be, it is compiled on a small stack, or refused by the compiler's own limit.
    for form in [
        format!("{{{{ 1{} }}}}", "+1".repeat(2_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(2_000)),
        format!("{{{{ x{} }}}}", "|string".repeat(2_000)),
        format!("{{{{ x{} }}}}", "[0]".repeat(2_000)),
        format!("{{{{ {}0 }}}}", "1 if 0 else ".repeat(1_000)),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(500)),
    ] {
        compile_error(form);
    }
}

#[test]
fn what_a_template_says_is_one_short_line() {
    let source = "{{ raise_exception('a\n' ~ 'x' * 100000) }}";
    let error = render(source, &input(json!([]))).expect_err("it is raised").to_string();
    assert!(error.starts_with("the chat template refuses the messages: a xxx"), "{error}");
    assert!(error.chars().count() < 600 && !error.contains('\n'), "{error}");
}
