#!/usr/bin/env python3
"""JSON schemas, drawn by chance, with instances that Python's `jsonschema` finds valid or not.

    python3 generate.py 2000 50 > schemas.jsonl     # a number and a seed; needs jsonschema alone

A line is what `cargo run --release --example structured -- model.gguf schemas.jsonl` reads. Schemas use what real ones use:
nested objects and lists, references, alternatives, bounds, patterns, formats, counts. Instances are made from a schema and
then broken in one place in half of the cases; objects have their keys in the schema's order.
"""
import json
import random
import sys

from jsonschema import Draft202012Validator, FormatChecker

WORDS = ["id", "name", "größe", "a/b", "tags", "x-1", "created", "unit", "kind", "ok"]
TEXTS = ["", "a", "river stone", "é", "日本", "a\"b\\", "x-12", "2024-02-29", "abc", "AB-1", "tab\t"]
PATTERNS = {
    "^[a-z]{1,4}$": ["a", "abc", "wxyz"],
    "^x-[0-9]+$": ["x-1", "x-12"],
    "[A-Z]": ["A", "AB-1", "éA"],
    "^(ab|cd)*$": ["", "ab", "abcd"],
}
FORMATS = {
    "date": ["2024-02-29", "1999-12-31"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
    "ipv4": ["10.0.0.1"],
    "email": ["a@b.example"],
}


def integer(r):
    low = r.randint(-30, 30)
    schema = {"type": "integer"}
    if r.random() < 0.5:
        schema["minimum"] = low
    if r.random() < 0.5:
        schema["maximum"] = low + r.randint(0, 40)
    if r.random() < 0.15:
        schema["multipleOf"] = r.choice([2, 3, 5])
    return schema


def number(r):
    schema = {"type": "number"}
    if r.random() < 0.4:
        schema[r.choice(["minimum", "exclusiveMinimum"])] = r.choice([-1, 0, 0.5, 10])
    if r.random() < 0.4:
        schema[r.choice(["maximum", "exclusiveMaximum"])] = r.choice([20, 99.5, 1000])
    return schema


def text(r):
    schema, what = {"type": "string"}, r.random()
    if what < 0.25:
        schema["pattern"] = r.choice(list(PATTERNS))
    elif what < 0.4:
        schema["format"] = r.choice(list(FORMATS))
    else:
        if r.random() < 0.5:
            schema["minLength"] = r.randint(0, 3)
        if r.random() < 0.5:
            schema["maxLength"] = r.randint(3, 12)
    return schema


def listed(r, depth):
    schema = {"type": "array", "items": one(r, depth - 1)}
    if r.random() < 0.3:
        schema["prefixItems"] = [one(r, depth - 1) for _ in range(r.randint(1, 2))]
    if r.random() < 0.4:
        schema["minItems"] = r.randint(0, 2)
    if r.random() < 0.4:
        schema["maxItems"] = r.randint(2, 5)
    if r.random() < 0.1:
        schema["uniqueItems"] = True
    if r.random() < 0.06:
        schema["contains"] = {"type": r.choice(["string", "integer", "null"])}
    return schema


def table(r, depth):
    names = r.sample(WORDS, r.randint(1, 4))
    schema = {"type": "object", "properties": {name: one(r, depth - 1) for name in names}}
    if r.random() < 0.7:
        schema["required"] = r.sample(names, r.randint(0, len(names)))
    if r.random() < 0.5:
        schema["additionalProperties"] = r.choice([False, False, True, {"type": "string"}])
    if r.random() < 0.1:
        schema["patternProperties"] = {"^x-": {"type": "integer"}}
    if r.random() < 0.06:
        schema["minProperties"] = 1
    if r.random() < 0.06:
        schema["dependentRequired"] = {names[0]: names[-1:]}
    return schema


def one(r, depth):
    what = r.random()
    if depth <= 0 or what < 0.4:
        return r.choice([integer, number, text, text, lambda r: {"type": "boolean"}, lambda r: {"type": "null"},
                         lambda r: {"enum": r.sample(["a", "b", 1, None, True, "ü"], 3)},
                         lambda r: {"const": r.choice(["user", 7, None, [1, "a"]])}])(r)
    if what < 0.55:
        return listed(r, depth)
    if what < 0.85:
        return table(r, depth)
    if what < 0.93:
        return {r.choice(["anyOf", "oneOf"]): [one(r, depth - 1) for _ in range(2)]}
    if what < 0.96:
        return {"$ref": "#/$defs/" + r.choice(["one", "a~1b"])}
    if what < 0.98:
        return {"type": ["string", "integer"], "not": {"const": r.choice(["a", 1])}}
    return {"allOf": [table(r, 1), table(r, 1)]}


def merged(schema):
    """Returns the properties of a schema and of those that hold beside it, in order."""
    found = dict(schema.get("properties", {}))
    for part in schema.get("allOf", []):
        found.update({k: v for k, v in merged(part).items() if k not in found})
    return found


def instance(r, schema, defs, depth=6):
    """Returns a value that is likely to be valid."""
    if depth == 0:
        return None
    if "$ref" in schema:
        return instance(r, defs[schema["$ref"].split("/")[-1].replace("~1", "/")], defs, depth - 1)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return instance(r, r.choice(schema[word]), defs, depth - 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return r.choice(schema["enum"])
    kind = schema.get("type", "object" if "allOf" in schema else None)
    kind = r.choice(kind) if isinstance(kind, list) else kind
    if kind == "object":
        properties = merged(schema)
        needed = set(schema.get("required", [])).union(*[part.get("required", []) for part in schema.get("allOf", [])])
        value = {name: instance(r, sub, defs, depth - 1) for name, sub in properties.items()
                 if name in needed or r.random() < 0.6}
        if schema.get("additionalProperties", True) is not False and r.random() < 0.2:
            value["more"] = "text"
        return value
    if kind == "array":
        first = schema.get("prefixItems", [])
        n = r.randint(schema.get("minItems", 0), schema.get("maxItems", 3))
        return [instance(r, first[i] if i < len(first) else schema.get("items", {}), defs, depth - 1) for i in range(n)]
    if kind == "integer":
        low = schema.get("minimum", -50)
        value = r.randint(low, max(low, schema.get("maximum", low + 100)))
        step = schema.get("multipleOf", 1)
        return value - value % step
    if kind == "number":
        return r.choice([1, 2.5, 15, 0.25, -3, 1e3, 12.75])
    if kind == "string":
        if "pattern" in schema:
            return r.choice(PATTERNS[schema["pattern"]])
        if "format" in schema:
            return r.choice(FORMATS[schema["format"]])
        return r.choice(TEXTS)
    return r.choice([True, False]) if kind == "boolean" else None


def broken(r, value):
    """Returns the value with one thing in it changed."""
    if isinstance(value, dict) and value and r.random() < 0.7:
        name = r.choice(list(value))
        if r.random() < 0.3:
            return {k: v for k, v in value.items() if k != name}
        return {k: broken(r, v) if k == name else v for k, v in value.items()}
    if isinstance(value, list) and value and r.random() < 0.7:
        at = r.randrange(len(value))
        return value[:at] + [broken(r, value[at])] + value[at + 1:]
    return r.choice([None, True, -1000, 3.5, "?", "2023-02-29", [], {}, {"zz": 1}])


def main():
    n, seed = int(sys.argv[1]), int(sys.argv[2])
    r = random.Random(seed)
    for _ in range(n):
        defs = {"one": table(r, 1), "a/b": listed(r, 1)}
        schema = {**one(r, 3), "$defs": defs}
        validator = Draft202012Validator(schema, format_checker=FormatChecker())
        tests = []
        for i in range(6):
            value = instance(r, schema, defs)
            value = broken(r, value) if i % 2 else value
            tests.append({"data": value, "valid": validator.is_valid(value)})
        print(json.dumps({"schema": schema, "tests": tests}, ensure_ascii=False))


main()
