#!/usr/bin/env python3
"""Expressions of chat templates, drawn by chance, with what Jinja2 makes of them as transformers sets it up.

    python3 generate.py 420 50 > cases.jsonl        # a number and a seed; needs jinja2 alone
    python3 generate.py context > context.json

A line has a template and its expected text, or null where Jinja2 refuses it. Expressions whose result depends on
addresses, on the order of a set or on the clock are left out. `cases.jsonl` beside this file is such an output, and
`template::tests::generated` runs it. For any other: `cargo run --example template_cases < cases`.
"""
import json
import random
import sys
from datetime import datetime

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

CONTEXT = {
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello <there>, it's me & \"you\""},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "function": {"name": "f", "arguments": {"b": 1, "a": [1, 2.5, None, True], "ü": "é\n"}}}]},
        {"role": "tool", "content": "  42\t\n"},
        {"role": "user", "content": ""},
    ],
    "n": 3, "x": 2.5, "z": 0, "big": 1234567, "neg": -7, "t": True, "f": False, "no": None,
    "s": "The quick brown fox", "e": "", "u": "Größe ǆ Straße ﬁn 日本 e\u0301", "w": "  pad\t", "path": "a/b/c.txt",
    "l": [3, 1, 2], "ll": [[1, 2], [3, 4], []], "ss": ["b", "A", "c", "a"], "mix": [1, "1", None, 2.0, [True]],
    "d": {"k": 1, "b": {"x": [1, 2]}, "a": None}, "dd": [{"n": "x", "v": 2}, {"n": "Y", "v": 1}, {"n": "x", "v": 3}],
    "nothing_in": {}, "empty": [],
}


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise ValueError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: datetime(2025, 1, 15, 12, 34, 56).strftime(format)
    return env


class Draw:
    """Draws expressions; names of kinds: S text, I whole number, F float, B truth value, L list, D dict, A any."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def one(self, *choices):
        return self.r.choice(choices)

    def text_literal(self):
        word = self.one("a", "ab", "o", "", " ", "x y", "-", "fox", "Straße", "l", ",", "a,b,,c", "it\\'s", "1", "3.7",
                        "%s", "\\n", "a\\tb", "\\d", "\\x41", "\\u00e9", "<b>", "e")
        return "'%s'" % word

    def S(self, k):
        if k <= 0:
            return self.one("s", "e", "u", "w", "path", "messages[1].content", "messages[0].role", self.text_literal(),
                            self.text_literal())
        a = self.S(k - 1)
        return self.r.choice([
            lambda: f"({a} ~ {self.A(k - 1)})",
            lambda: f"({a} + {self.S(k - 1)})",
            lambda: f"({a} * {self.one('2', '0', '-1', 'n')})",
            lambda: f"{a}[{self.I(0)}]",
            lambda: f"{a}[{self.slice()}]",
            lambda: f"{a}.{self.one('upper', 'lower', 'strip', 'lstrip', 'rstrip', 'title', 'capitalize', 'swapcase')}()",
            lambda: f"{a}.{self.one('strip', 'lstrip', 'rstrip', 'removeprefix', 'removesuffix')}({self.text_literal()})",
            lambda: f"{a}.replace({self.text_literal()}, {self.text_literal()}{self.one('', ', 1', ', 0', ', -1')})",
            lambda: f"{a}.{self.one('center', 'ljust', 'rjust')}({self.one('10', '3', '25')}{self.one('', ', chr', chr(44) + ' ' + repr('*'))})".replace(", chr", ""),
            lambda: f"{a}.zfill({self.one('5', '12')})",
            lambda: f"{a}.join({self.one('ss', 'l|map(' + repr('string') + ')', 'd', 's')})",
            lambda: f"{a}.{self.one('partition', 'rpartition', 'split', 'rsplit')}({self.text_literal()})[{self.one('0', '-1', '1')}]",
            lambda: f"{a}|{self.one('upper', 'lower', 'title', 'capitalize', 'trim', 'string', 'reverse', 'e', 'safe', 'striptags', 'urlencode')}",
            lambda: f"{a}|replace({self.text_literal()}, {self.A(0)}{self.one('', ', 1')})",
            lambda: f"{a}|truncate({self.one('5', '9', '12', '8, true', '8, false, ' + repr('…'), '6, true, ' + repr(''), '9, leeway=0')})",
            lambda: f"{a}|center({self.one('12', '3', '31')})",
            lambda: f"{a}|indent({self.one('', '2', '2, true', '1, false, true', repr('> '), 'width=3, first=true')})",
            lambda: f"{a}|default({self.S(0)}{self.one('', ', true')})",
            lambda: f"{a}|trim({self.text_literal()})",
            lambda: f"{self.L(k - 1)}|join({self.text_literal()})",
            lambda: f"({self.one(repr('%s|%5s|%-5s'), repr('%r %s %s'), repr('%.2s%s%%%s'))} % ({self.A(k - 1)}, {self.S(0)}, {self.A(0)}))",
            lambda: f"({self.one(repr('%d'), repr('%5.1f'), repr('%+d'), repr('%05d'), repr('%x'), repr('%e'), repr('%g'), repr('%-6d|'), repr('% d'), repr('%#o'))} % {self.N(k - 1)})",
            lambda: f"{self.one(repr('%s=%s'), repr('%s %r'))}|format({self.A(0)}, {self.A(0)})",
            lambda: f"{self.one(repr('{}-{}'), repr('{1}{0}'), repr('{0!r:>9}|{1}'), repr('{:^9}|{:<4}'), repr('{{}}{}'), repr('{0[0]}{1}'))}.format({self.S(0)}, {self.A(0)})",
            lambda: f"{self.one(repr('{:,}'), repr('{:08.3f}'), repr('{:+}'), repr('{:e}'), repr('{:.3}'), repr('{:>+10.2f}'), repr('{:_}'), repr('{:%}'), repr('{:g}'))}.format({self.N(0)})",
            lambda: f"{self.one(repr('{:d}'), repr('{:#x}'), repr('{:b}'), repr('{:010,d}'), repr('{:^7}'), repr('{:=+6}'))}.format({self.I(0)})",
            lambda: f"{self.A(k - 1)}|tojson{self.one('', '', '(indent=2)', '(ensure_ascii=true)', '(sort_keys=true)', '(separators=(' + repr(',') + ', ' + repr(':') + '))', '(indent=' + repr(' ') + ', sort_keys=true)', '(true)')}",
            lambda: f"{self.A(k - 1)}|string",
            lambda: f"strftime_now({self.one(repr('%Y-%m-%d'), repr('%d %b %Y'), repr('%A, %B %-d'), repr('%H:%M:%S %p %I'), repr('%j %U %W %w %u'), repr('%c'), repr('%x %X'), repr('%e|%y|%G-W%V'), repr('%%|%D|%F|%T|%R|%h|%n%t'), repr('%s'), repr('%C %k %l'))})",
        ])()

    def slice(self):
        part = lambda: self.one("", "", "0", "1", "2", "-1", "-2", "5", "-9", "99", "n", "none")
        text = part() + ":" + part()
        return text + self.one("", "", ":", ":1", ":2", ":-1", ":-2", ":-1")

    def I(self, k):
        if k <= 0:
            return self.one("0", "1", "2", "-1", "n", "z", "neg", "big", "-3", "10", "t", "l[0]", "7")
        a = self.I(k - 1)
        return self.r.choice([
            lambda: f"({a} {self.one('+', '-', '*', '//', '%')} {self.I(k - 1)})",
            lambda: f"({a} ** {self.one('2', '0', '1', 'n')})",
            lambda: f"{self.L(k - 1)}|length",
            lambda: f"{self.S(k - 1)}|{self.one('length', 'count', 'wordcount', 'int', 'int(7)', 'int(0, 16)', 'int(base=2)')}",
            lambda: f"{self.S(k - 1)}.{self.one('find', 'rfind', 'count', 'index')}({self.text_literal()}{self.one('', ', 1', ', 1, -1', ', -3')})",
            lambda: f"{self.L(k - 1)}.{self.one('index', 'count')}({self.A(0)})",
            lambda: f"{a}|abs",
            lambda: f"{self.F(k - 1)}|int",
            lambda: f"{a}|round{self.one('', '(-1)', '(2)')}",
            lambda: f"-({a})",
            lambda: f"{self.one('l', '[1, 2, t]', 'empty', 'range(4)')}|{self.one('sum', 'max', 'min', 'first', 'last', 'sum(start=10)')}",
            lambda: f"dd|sum(attribute='v')",
        ])()

    def F(self, k):
        if k <= 0:
            return self.one("x", "0.5", "-2.5", "1e-7", "3.0", "1e20", "2.675", "0.1", "123456.789", "1.5")
        return self.r.choice([
            lambda: f"({self.F(k - 1)} {self.one('+', '-', '*', '//', '%', '/')} {self.N(k - 1)})",
            lambda: f"({self.I(k - 1)} / {self.I(k - 1)})",
            lambda: f"{self.F(k - 1)}|round{self.one('', '(1)', '(2)', '(0, ' + repr('ceil') + ')', '(1, ' + repr('floor') + ')', '(method=' + repr('ceil') + ')', '(3)')}",
            lambda: f"{self.S(k - 1)}|float{self.one('', '(1.5)')}",
            lambda: f"{self.I(k - 1)}|float",
            lambda: f"({self.I(0)} ** {self.one('-1', '0.5', '-2')})",
        ])()

    def N(self, k):
        return self.I(k) if self.r.random() < 0.5 else self.F(k)

    def B(self, k):
        if k <= 0:
            return self.one("t", "f", "true", "false", "True", "False")
        return self.r.choice([
            lambda: f"({self.N(k - 1)} {self.one('==', '!=', '<', '<=', '>', '>=')} {self.N(k - 1)})",
            lambda: f"({self.S(k - 1)} {self.one('==', '!=', '<', '<=', '>', '>=', 'in', 'not in')} {self.S(k - 1)})",
            lambda: f"({self.A(k - 1)} {self.one('==', '!=')} {self.A(k - 1)})",
            lambda: f"({self.A(k - 1)} {self.one('in', 'not in')} {self.L(k - 1)})",
            lambda: f"({self.L(0)} {self.one('<', '>=', '==')} {self.L(0)})",
            lambda: f"({self.S(0)} {self.one('in', 'not in')} {self.D(0)})",
            lambda: f"(not {self.A(k - 1)})",
            lambda: f"({self.A(k - 1)} is {self.one('', 'not ')}{self.one('defined', 'none', 'string', 'mapping', 'sequence', 'iterable', 'number', 'integer', 'float', 'boolean', 'true', 'false', 'callable', 'undefined', 'upper', 'lower', 'escaped', 'sameas none')})",
            lambda: f"({self.I(k - 1)} is {self.one('odd', 'even', 'divisibleby 3', 'divisibleby(2)', 'eq 3', 'gt(1)', 'in l', 'lessthan 2', 'ne 1')})",
            lambda: f"{self.S(k - 1)}.{self.one('startswith', 'endswith')}({self.one(self.text_literal(), '(' + repr('a') + ', ' + repr('T') + ')')})",
            lambda: f"{self.S(k - 1)}.{self.one('isalpha', 'isdigit', 'isalnum', 'isspace', 'islower', 'isupper', 'istitle', 'isascii', 'isnumeric', 'isdecimal')}()",
            lambda: f"({self.N(0)} < {self.N(0)} {self.one('<', '<=', '!=')} {self.N(0)})",
        ])()

    def L(self, k):
        if k <= 0:
            return self.one("l", "ll", "ss", "mix", "empty", "dd", "messages", "[1, 'a', none]", "[]", "[0.5, t]", "['x']",
                            "(1, 2)", "('a',)", "range(3)", "range(5, 0, -2)")
        a = self.L(k - 1)
        return self.r.choice([
            lambda: f"{a}[{self.slice()}]",
            lambda: f"({self.one('l', 'ss', '[]')} + {self.one('[1]', 'll', 'empty')})",
            lambda: f"({a} * {self.one('2', '0', '1')})",
            lambda: f"{self.S(k - 1)}.{self.one('split', 'rsplit')}({self.one('', self.text_literal(), self.text_literal() + ', 1', 'none, 1')})",
            lambda: f"{self.S(k - 1)}.{self.one('splitlines', 'split')}()",
            lambda: f"{self.S(k - 1)}.{self.one('partition', 'rpartition')}({self.text_literal()})",
            lambda: f"{a}|{self.one('list', 'sort', 'unique|list', 'reverse|list', 'sort(reverse=true)', 'batch(2)|list', 'batch(2, 0)|list', 'slice(2)|list', 'slice(3, 9)|list')}",
            lambda: f"{self.S(k - 1)}|list",
            lambda: f"{a}|map({self.one(repr('string'), repr('length'), repr('upper'), repr('default') + ', 1', repr('int'), repr('tojson'))})|list",
            lambda: f"dd|map(attribute={self.one(repr('n'), repr('v'), repr('q'), repr('q') + ', default=0')})|list",
            lambda: f"{a}|{self.one('select', 'reject')}({self.one('', repr('string'), repr('none'), repr('number'), repr('eq') + ', 1', repr('odd'), repr('in') + ', l')})|list",
            lambda: f"dd|{self.one('selectattr', 'rejectattr')}({self.one(repr('n'), repr('n') + ', ' + repr('equalto') + ', ' + repr('x'), repr('v') + ', ' + repr('gt') + ', 1', repr('q') + ', ' + repr('defined'))})|list",
            lambda: f"dd|sort(attribute={self.one(repr('n'), repr('v'), repr('n,v'))}{self.one('', ', reverse=true')})",
            lambda: f"dd|groupby('n'){self.one('', '|list', '|map(' + repr('first') + ')|list', '|map(attribute=' + repr('list') + ')|list')}",
            lambda: f"ss|{self.one('sort(case_sensitive=true)', 'unique(true)|list', 'min', 'max', 'sort', 'map(' + repr('upper') + ')|unique|list')}",
            lambda: f"{self.D(k - 1)}|{self.one('list', 'dictsort', 'items|list', 'dictsort(by=' + repr('key') + ', reverse=true)')}",
            lambda: f"{self.D(k - 1)}.{self.one('items()', 'keys()', 'values()', 'items()|list', 'keys()|list', 'values()|list|length', 'keys()|sort')}",
            lambda: f"[{self.A(k - 1)}, {self.A(k - 1)}]",
            lambda: f"({self.A(k - 1)}, {self.A(0)})",
        ])()

    def D(self, k):
        if k <= 0:
            return self.one("d", "nothing_in", "{'a': 1, 'b': [1]}", "messages[0]", "{}", "dd[0]", "{1: 'x', none: 2.0}",
                            "d.b", "dict(a=1, b='x')", "dict([('p', 1), ('q', 2)])", "dict(d, z=1)")
        return self.r.choice([
            lambda: f"{{'k': {self.A(k - 1)}, {self.S(0)}: {self.A(k - 1)}}}",
            lambda: f"dict({self.D(k - 1)}, y={self.A(0)})",
            lambda: f"{self.D(k - 1)}.copy()",
        ])()

    def A(self, k):
        pick = self.r.random()
        if pick < 0.05:
            return self.one("missing", "d.missing", "no", "none", "d.items", "messages[9]", "d['k']", "d.get('q', 5)", "d.get('a')",
                            "d['items'] is defined", "ll.0.1", "ll.1.0", "messages.2.tool_calls.0.function", "ll[5]", "s.upper is callable")
        if pick < 0.12:
            return f"({self.A(k - 1)} {self.one('and', 'or')} {self.A(k - 1)})" if k > 0 else self.one("''", "0", "[]", "none")
        if pick < 0.16 and k > 0:
            return f"({self.A(k - 1)} if {self.A(k - 1)} else {self.A(k - 1)})"
        return self.r.choice([self.S, self.S, self.I, self.F, self.B, self.L, self.L, self.D])(k)

    def template(self):
        k = self.r.choice([1, 1, 1, 2, 2, 3])
        expression = self.A(k)
        form = self.r.random()
        if form < 0.75:
            return "{{ %s }}" % expression
        if form < 0.82:
            return "{%% set v = %s %%}{{ v }}|{{ v|string|length }}" % expression
        if form < 0.92:
            return "{%% for i in %s %%}{{ loop.index }}{{ i }}{{ '' if loop.last else ';' }}{%% else %%}none{%% endfor %%}" % self.L(k)
        if form < 0.96:
            return "{%% if %s %%}yes{%% else %%}no{%% endif %%}" % expression
        return self.one(
            "{%% set g = %s|map('string') %%}{{ g|first }}{{ g|list }}{{ g|list }}{%% if g %%}t{%% endif %%}" % self.L(k - 1),
            "{%% set j = joiner(', ') %%}{%% for i in %s %%}{{ j() }}{{ i }}{%% endfor %%}" % self.L(k - 1),
            "{%% set c = cycler('a', 'b') %%}{%% for i in %s %%}{{ c.next() }}{{ c.current }}{%% endfor %%}{{ c.reset() }}" % self.L(k - 1),
            "{%% set n = namespace(v=%s) %%}{%% set n.v = [n.v, 1] %%}{{ n.v }}" % self.A(k - 1),
            "{%% macro m(a, b=%s) %%}[{{ a }}{{ b }}]{%% endmacro %%}{{ m(1)|upper }}{{ m(b=2, a=%s) }}" % (self.A(k - 1), self.S(k - 1)),
            "{%% for k, v in %s.items() %%}{{ k }}={{ v }}{%% endfor %%}" % self.D(k - 1),
        )


def main():
    n, seed = int(sys.argv[1]), int(sys.argv[2])
    env, draw, seen = environment(), Draw(seed), set()
    while len(seen) < n:
        template = draw.template()
        if template in seen:
            continue
        try:
            expected = env.from_string(template).render(**CONTEXT)
        except Exception:  # whatever it is, it is refused
            expected = None
        # An address, or so much text that it says nothing more.
        if expected is not None and (" at 0x" in expected or len(expected) > 2000):
            continue
        seen.add(template)
        print(json.dumps({"template": template, "expected": expected}, ensure_ascii=False))


if __name__ == "__main__":
    if sys.argv[1:] == ["context"]:
        print(json.dumps(CONTEXT, ensure_ascii=False))
    else:
        main()
