//! Templates that make much of little: each is stopped, soon, and in memory that is bounded.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{check, input, render};

/// Wraps what is done many times.
fn often(set_up: &str, step: &str) -> String {
    let begin = "{% set ns = namespace(t='abcdefgh', l=[1, 2], m={}, n=0) %}";
    format!("{begin}{set_up}{{% for i in range(60) %}}{step}{{% endfor %}}done")
}

/// Expects an error that says so, within a time that a machine with other work has too.
fn stopped(source: &str) {
    let begun = Instant::now();
    let error = render(source, &input(json!([{"role": "user", "content": "hi"}]))).expect_err(source).to_string();
    let took = begun.elapsed();
    let is_expected = ["takes too much", "longer than", "nested deeper", "more than", "too large", "cannot be kept"];
    assert!(is_expected.iter().any(|part| error.contains(part)), "{source}: {error}");
    assert!(!error.contains('\n') && error.len() < 700, "{error}");
    assert!(took < Duration::from_secs(10), "{source}: {took:?}");
}

#[test]
fn doubled_texts_are_stopped() {
    for step in [
        "{% set ns.t = ns.t ~ ns.t %}",
        "{% set ns.t = ns.t + ns.t %}",
        "{% set ns.t = ns.t * 2 %}",
        "{% set ns.t = 2 * ns.t %}",
        "{% set ns.t = [ns.t, ns.t] | join %}",
        "{% set ns.t = ''.join([ns.t, ns.t]) %}",
        "{% set ns.t = [ns.t, ns.t] | join(ns.t) %}",
        "{% set ns.t = ns.t | replace('a', 'aa') | replace('a', 'aa') %}",
        "{% set ns.t = ns.t.replace('a', ns.t) %}",
        "{% set ns.t = ns.t.replace('', 'xy') %}",
        "{% set ns.t = '%s%s' | format(ns.t, ns.t) %}",
        "{% set ns.t = '{}{}'.format(ns.t, ns.t) %}",
        "{% set ns.t = '{0}{0}{0}'.format(ns.t) %}",
        "{% set ns.t = (ns.t ~ '\n') * 2 %}{% set ns.t = ns.t | indent(9000, true) %}",
        "{% set ns.t = [ns.t, ns.t] | string %}",
        "{% set ns.t = [ns.t, ns.t] | tojson %}",
        "{% set ns.t = {'a': ns.t} | tojson(indent=ns.t) %}",
        "{% set ns.t = [1, 2, 3] | tojson(separators=(ns.t, ns.t)) %}",
        "{% set ns.t %}{{ ns.t }}{{ ns.t }}{% endset %}",
        "{% set x %}{{ ns.t }}{{ ns.t }}{% endset %}{% set ns.t = x %}",
        "{% set ns.t = (ns.t ~ ns.t) | upper %}",
        "{% set ns.t = (ns.t ~ ns.t)[::-1] %}",
        "{% set ns.t = (ns.t ~ ns.t)[:] %}",
        "{% set ns.t = (ns.t ~ ns.t) | list | join %}",
        "{% set ns.t = (ns.t + ns.t).split('a') | join('a') %}",
        "{% set ns.t = (ns.t + ns.t).title() %}",
        "{% set ns.t = (ns.t + ns.t) | e %}",
        "{% set ns.t = (ns.t + ns.t) | safe + '&' %}",
        "{% set ns.t = '%s%s' % (ns.t, ns.t) %}",
        "{% set ns.t = '%(a)s%(a)s' % {'a': ns.t} %}",
        "{% set ns.t = (ns.t + ns.t) | urlencode %}",
        "{% set ns.t = (ns.t + ns.t) | center(9000) %}",
        "{% set ns.t = (ns.t + ns.t).ljust(9000) | replace(' ', ns.t) %}",
        "{% set ns.t = (ns.t + ns.t + '\t').expandtabs(9000) %}",
        "{% set ns.t = (ns.t + ns.t).removeprefix('z').zfill(99) %}",
        "{% set ns.t = (ns.t + ns.t) | truncate(99999999999) %}",
        "{% set ns.t = '{0!r}{0!r}'.format(ns.t) %}",
    ] {
        stopped(&often("", step));
    }
    for source in [
        "{{ 'x' * 99999999999 }}",
        "{{ 'x' | indent(99999999999, true) }}",
        "{{ '%99999999999d' | format(1) }}",
        "{{ '{:>99999999999}'.format(1) }}",
        "{{ ('x' * 50000000) ~ ('x' * 50000000) }}",
        "{{ [1] | batch(99999999999) }}",
        "{{ [1] | slice(99999999999) }}",
        "{{ [1] | batch(99999999999, 0) }}",
        "{{ 'x'.center(99999999999) }}",
        "{{ 'x'.zfill(99999999999) }}",
        "{{ 'x' | center(99999999999) }}",
        "{{ 'x\t'.expandtabs(99999999999) }}",
        "{{ '%*d' % (99999999999, 1) }}",
        "{{ '%.*f' % (99999999999, 1.0) }}",
        "{{ '{:.99999999999f}'.format(1.0) }}",
        "{{ '{:{}}'.format(1, 99999999999) }}",
        "{{ [1] | tojson(indent=99999999999) }}",
        "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns = namespace(t='ab') %}{% for i in range(60) %}{% set ns.t = m(ns.t) %}{% endfor %}",
        "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}{% set ns = namespace(t='ab') %}{% for i in range(60) %}{% set ns.t %}{% call m() %}{{ ns.t }}{% endcall %}{% endset %}{% endfor %}",
        "{% set ns = namespace(t='ab') %}{% for i in range(60) %}{% set ns.t %}{% filter upper %}{{ ns.t }}{{ ns.t }}{% endfilter %}{% endset %}{% endfor %}",
    ] {
        stopped(source);
    }
}

#[test]
fn doubled_lists_are_stopped() {
    for step in [
        "{% set ns.l = ns.l + ns.l %}",
        "{% set ns.l = ns.l * 2 %}",
        "{% set ns.l = ns.l | chain(ns.l) | list %}",
        "{% set ns.l = ns.l | chain(ns.l) %}",
        "{% set ns.l = (ns.l + ns.l) | map('string') | list %}",
        "{% set ns.l = (ns.l + ns.l) | reverse | list %}",
        "{% set ns.l = (ns.l + ns.l)[:] %}",
        "{% set ns.l = (ns.l + ns.l) | sort %}",
        "{% set ns.l = (ns.l + ns.l) | zip(ns.l + ns.l) | list %}",
        "{% set ns.l = (ns.l + ns.l) | map('string') | list %}",
        "{% set ns.l = (ns.l + ns.l) | batch(1) | list %}",
        "{% set ns.l = (ns.l + ns.l) | slice(2) | first %}{% set ns.l = ns.l * 4 %}",
        "{% set ns.l = ((1, ns.l) + (2, ns.l)) %}{% set ns.l = [ns.l, ns.l] %}",
        "{% set ns.t = ns.t ~ ns.t %}{% set ns.l = ns.t.partition('a') %}",
        "{% set ns.t = ns.t ~ ns.t %}{% set ns.l = ns.t.splitlines() %}",
        "{% set ns.t = ns.t ~ ns.t %}{% set ns.l = ns.t.rsplit('a', 5) %}",
        "{% set ns.t = ns.t ~ ns.t %}{% set ns.l = ns.t | list %}",
        "{% set ns.t = ns.t ~ ns.t %}{% set ns.l = ns.t.split('a') %}",
    ] {
        stopped(&often("", step));
    }
    for source in [
        "{{ [0] * 99999999999 }}",
        "{{ 1 in [0] * 99999999999 }}",
        "{{ [0] * 99999999999 == [0] * 99999999999 }}",
        "{% for i in [0] * 99999999999 %}{% break %}{% endfor %}",
        "{{ (range(99999) | list * 9999) | length }}",
    ] {
        stopped(source);
    }
}

#[test]
fn what_shares_its_parts_is_counted_as_often_as_it_is_seen() {
    let shared = "{% set ns.l = [ns.l, ns.l] %}";
    stopped(&often("", shared));
    let some = "{% set ns = namespace(l=[]) %}{% for i in range(22) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{% set x = ns.l %}";
    for step in [
        "{% if x == y %}{% endif %}",
        "{% if x < y %}{% endif %}",
        "{% if x in [y] %}{% endif %}",
        "{% set z = {'k': x} %}",
        "{% set z = {x: 1} %}",
        "{% set z = {'a': 1}[x] %}",
        "{% set z = x | string %}",
        "{% set z = x | tojson %}",
        "{% set z = [x, y] | unique %}",
        "{% set z = [x, y] | sort %}",
        "{% set z = '%s' | format(x) %}",
        "{% set z = ''.join([x]) %}",
        "{% set z = [x] | join %}",
        "{% set z = [x] | map('upper') %}",
        "{% set z = [x] | select('eq', y) | list %}",
        "{{ raise_exception(x) }}",
        "{{ x }}",
    ] {
        stopped(&format!("{some}{{% set y = [x[0], x[1]] %}}{{% for i in range(9999) %}}{step}{{% endfor %}}"));
    }
}

#[test]
fn what_is_kept_step_by_step_is_stopped() {
    for step in [
        "{% set ns.l = ns.l + [i] %}",
        "{% set ns.l = [ns.l] %}",
        "{% set ns.m = {'m': ns.m} %}",
        "{% set ns.l = ns.l | batch(1) | list %}",
        "{% set ns.l = dict(a=ns.l) %}",
        "{% set ns.l = ns.l + ['x' * 10000 ~ i] %}",
        "{% set ns.l = ns.l + [('x' * 10000) | upper] %}",
        "{% set ns.l = ns.l + [('x' * 10000).title()] %}",
        "{% set ns.l = ns.l + [('x' * 10000)[1:]] %}",
        "{% set ns.l = ns.l + [('x' * 10000) | safe] %}",
        "{% set ns.l = ns.l + [{'a': i}] %}",
        "{% set x %}{% for j in range(999) %}some text that is written{% endfor %}{% endset %}",
        "{% macro m() %}{{ ns }}{% endmacro %}{% set x = m %}{% set y = [1, i, 2] | list %}{% set z = {'i': i} %}",
        "{% set ns.l = ns %}",
        "{% set ns.l = [ns] %}",
        "{% set ns.l = namespace(l=ns) %}",
        "{% set ns.l = loop %}",
        "{% if loop.changed([loop]) %}{% endif %}",
        "{% set ns.l = cycler(ns) %}",
        "{% set ns.l = [ns].count %}",
        "{% set ns.l = (ns,) %}",
        "{% set g = [ns, 1] | map('default') %}{% set x = g | first %}{% set ns.l = g %}",
    ] {
        let source = format!(
            "{{% set ns = namespace(l=[], m={{}}) %}}{{% for k in range(99) %}}{{% for i in range(99999) %}}{step}{{% endfor %}}{{% endfor %}}"
        );
        stopped(&source);
    }
    let nested = "{% set ns = namespace() %}".to_owned() + &"{% set ns = namespace(n=ns) %}".repeat(9_999);
    stopped(&nested);
}

#[test]
fn what_cannot_be_counted_is_no_template() {
    for source in [
        "{% include 'chat' %}",
        "{% extends 'chat' %}",
        "{{ dict(*messages) }}",
        "{% for i in [1] %}{{ loop.cycle() }}{% endfor %}",
        &format!("{{{{ [{}] }}}}", "i,".repeat(70_000)),
        &format!("{{{{ f({}1) }}}}", "i,".repeat(70_000)),
    ] {
        let error = render(source, &input(json!([]))).expect_err("it is refused").to_string();
        assert!(error.starts_with("the chat template does not compile"), "{error}");
        assert!(error.contains("not supported") || error.contains("Too many arguments"), "{error}");
    }
    // Constants are not computed before they are asked for.
    check("{% if false %}{{ 'x' * 99999999 ~ 'x' * 99999999 }}{% endif %}ok", json!(""), "ok");
    // A method of the template engine's that does not end by itself.
    check("{{ 'abc'.count('') }}", json!(""), "4");
}

#[test]
fn what_is_dropped_is_given_back() {
    // 4,000 texts of 100 kB, one at a time.
    let source = "{% set ns = namespace(t='') %}{% for i in range(4000) %}{% set ns.t = 'x' * 100000 ~ i %}{% endfor %}{{ ns.t | length }}";
    check(source, json!(""), "100004");
    // A text and a list that grow with each of a thousand messages.
    let messages: Vec<_> = (0..1000).map(|i| json!({"role": "user", "content": format!("{i}").repeat(100)})).collect();
    let source = "{% set ns = namespace(t='', l=[]) %}{% for m in messages %}{% set ns.t = ns.t ~ m.content %}{% set ns.l = ns.l + [m] %}{% set rest = messages[loop.index0:] | selectattr('role', 'equalto', 'user') | list %}{% endfor %}{{ ns.t | length }} {{ ns.l | length }}";
    assert_eq!(render(source, &input(json!(messages))).expect("it renders"), "289000 1000");
}

#[test]
fn operators_are_pythons() {
    for (source, expected) in [
        (
            "{{ 1 + 2 }} {{ 1 + 0.5 }} {{ true + 1 }} {{ 2 * 3 }} {{ 2 * 0.5 }} {{ 'ab' * 2 }} {{ 'a' * -1 }}",
            "3 1.5 2 6 1.0 abab ",
        ),
        ("{{ 'a' ~ 1 ~ none ~ true ~ nothing ~ [1] }}", "a1NoneTrue[1]"),
        ("{{ [1] + [2] }} {{ [1, 2] * 2 }} {{ ([1] + [2]) is sequence }}", "[1, 2] [1, 2, 1, 2] True"),
        ("{{ 'abc'[1] }} {{ 'abc'[-1] }} {{ 'abc'[1:] }} {{ 'äbc'[::-1] }} {{ [1, 2, 3][:-1] }}", "b c bc cbä [1, 2]"),
        (
            "{{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ [1] == [1] }} {{ 'b' in 'abc' }} {{ 2 in [1, 2] }} {{ 'k' not in {'k': 1} }}",
            "True True True True True False",
        ),
        ("{{ {'a': [1, 'x']}['a'][1] }} {{ {'b': 1, 'a': nothing} }}", "x {'b': 1, 'a': Undefined}"),
        (
            "{{ {'a': 1}.items() }} {{ {'a': 1}.keys() | list }} {{ 'a,b'.split(',') }} {{ range(3) }}",
            "dict_items([('a', 1)]) ['a'] ['a', 'b'] range(0, 3)",
        ),
        (
            "{{ ['b', 'a'] | sort | join(', ') }} {{ [1, 2] | sum }} {{ 'x' | default('y') }} {{ nothing | default('y') }}",
            "a, b 3 x y",
        ),
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(' ') }}", "hi"),
        (
            "{{ 'a-b' | replace('-', '+') | upper }} {{ '%s %d' | format('x', 3) }} {{ '{} {}'.format(1, 'b') }}",
            "A+B x 3 1 b",
        ),
        (
            "{{ [1, 2, 3] | batch(2) | list }} {{ 'a\nb' | indent(2) }} {{ ' x ' | trim }}|{{ {'b': 1} | dictsort }}",
            "[[1, 2], [3]] a\n  b x|[('b', 1)]",
        ),
        ("{% for a, b in [[1, 2]] %}{{ a + b }}{% endfor %}{% set a, b = [1, 2] %}{{ a }}{{ b }}", "312"),
        (
            "{% for x in [1, 2, 3] if x > 1 %}{{ loop.index }}:{{ x }}{{ '' if loop.last else ',' }}{% else %}none{% endfor %}",
            "1:2,2:3",
        ),
        (
            "{% macro m(a, b='x') %}{{ a ~ b }}{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}{% set y %}<{{ m('q') }}>{% endset %}{{ y }}",
            "1x12<qx>",
        ),
        (
            "{% for i in [[1, [2]], 3] recursive %}{% if i is iterable %}[{{ loop(i) }}]{% else %}{{ i }}{% endif %}{% endfor %}",
            "[1[2]]3",
        ),
        ("{% with a = 1 %}{{ a }}{% endwith %}{% filter upper %}x{% endfilter %}{% block b %}y{% endblock %}", "1Xy"),
    ] {
        check(source, json!("hi"), expected);
    }
}
