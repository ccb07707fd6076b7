//! The API reference in `docs/src/api.md`, `api-responses.md` and `api-others.md` is written from the OpenAPI document, and is not out of date.

use std::collections::BTreeSet;
use std::fmt::Write;

use ruvllm_testkit::check_page;
use serde_json::Value;

use crate::client::{Bench, options};

/// `RUVLLM_WRITE_DOCS=1` writes the page instead of comparing it.
#[test]
fn the_api_reference_is_that_of_the_openapi_document() {
    let document = Bench::tiny(options()).get("/openapi.json").ok();
    let pages = [
        ("api.md", page(&document)),
        (
            "api-responses.md",
            page_beside(&document, "responses, conversations, files and batches", RESPONSES, is_of_responses),
        ),
        ("api-others.md", page_beside(&document, "Ollama and llama.cpp", OTHERS, is_of_other)),
    ];
    for (name, page) in pages {
        check_page(name, &page, "cargo test -p ruvllm-server --test it reference");
    }
}

/// Returns whether a path is one of another server: Ollama's or llama.cpp's.
fn is_of_other(path: &str) -> bool {
    path.starts_with("/api/")
        || ["/completion", "/embedding", "/infill", "/models/load", "/models/unload", "/props", "/slots"]
            .contains(&path)
}

/// Returns whether a path is one of responses, of conversations that they are added to, or of files and batches.
fn is_of_responses(path: &str) -> bool {
    ["/v1/responses", "/v1/conversations", "/v1/files", "/v1/batches"].iter().any(|prefix| path.starts_with(prefix))
}

const OTHERS: &str = "What clients of other servers ask.";
const RESPONSES: &str =
    "Answers that are kept, and go on from each other; requests in files, which are answered while nobody else asks.";

/// Returns the page of the paths that `is_meant`.
fn page_beside(document: &Value, title: &str, about: &str, is_meant: fn(&str) -> bool) -> String {
    let mut page = format!(
        "# API reference: {title}\n\n<!-- generated from /openapi.json by \
        crates/ruvllm-server/tests/it/reference.rs -->\n\n{about} The errors and the rules are those \
        of the [API reference](api.md).\n"
    );
    for (path, method, operation) in operations(document).filter(|(path, ..)| is_meant(path)) {
        endpoint(&mut page, path, method, operation);
    }
    page
}

fn page(document: &Value) -> String {
    let mut page = format!(
        "# API reference\n\n<!-- generated from /openapi.json by crates/ruvllm-server/tests/it/reference.rs -->\n\n{}\n\n\
         A server's own `/openapi.json` and `/v1/capabilities` say the same as data. Fields in bold must be there. `[]` \
         stands for each of a list, a word in parentheses for the object of that `type`.\n",
        text(&document["info"]["description"])
    );
    let _ = writeln!(page, "\n## Errors\n\n| status | when |\n|---|---|");
    let mut statuses = BTreeSet::new();
    for (_, _, operation) in operations(document) {
        for (status, response) in operation["responses"].as_object().into_iter().flatten() {
            if status != "200" {
                statuses.insert((status.as_str(), text(&response["description"])));
            }
        }
    }
    for (status, when) in statuses {
        let _ = writeln!(page, "| {status} | {when} |");
    }
    for (path, method, operation) in
        operations(document).filter(|(path, ..)| !is_of_other(path) && !is_of_responses(path))
    {
        endpoint(&mut page, path, method, operation);
    }
    page
}

fn operations(document: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
    let paths = document["paths"].as_object().expect("paths").iter();
    paths.flat_map(|(path, item)| {
        let methods = item.as_object().expect("methods").iter();
        methods.map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
    })
}

fn endpoint(page: &mut String, path: &str, method: &str, operation: &Value) {
    let _ = write!(page, "\n## {} {path}\n\n{}.", method.to_uppercase(), text(&operation["summary"]));
    if operation.get("security").is_some() {
        let _ = write!(page, " It takes a key, where the server has keys.");
    }
    let content = operation["responses"]["200"]["content"].as_object().expect("an answer");
    let fields = content.get("application/json").map(|json| &json["schema"]["required"]);
    let fields: Vec<String> =
        fields.and_then(Value::as_array).into_iter().flatten().map(|name| format!("`{}`", text(name))).collect();
    match fields.is_empty() {
        true => page.push_str(" The answer is text.\n"),
        false => {
            let _ = writeln!(page, " The answer has {}.", fields.join(", "));
        }
    }
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    if schema.is_object() {
        page.push_str("\n| field | takes | what it does |\n|---|---|---|\n");
        rows(page, schema, "");
    }
    let queried =
        operation["parameters"].as_array().into_iter().flatten().filter(|parameter| parameter["in"] == "query");
    for (i, parameter) in queried.enumerate() {
        if i == 0 {
            page.push_str("\n| in the query | takes | what it does |\n|---|---|---|\n");
        }
        let (name, doc) = (text(&parameter["name"]), text(&parameter["description"]));
        let _ = writeln!(page, "| `{name}` | {} | {doc} |", words(&parameter["schema"]));
    }
    let refused: Vec<&Value> = operation["x-refused"].as_array().into_iter().flatten().collect();
    if !refused.is_empty() {
        page.push_str("\nRefused, with the reason:\n\n");
    }
    for field in refused {
        let _ = writeln!(page, "- `{}`: {}", text(&field["name"]), text(&field["why"]));
    }
}

/// Writes a row for each property of an object, and for those inside it.
fn rows(page: &mut String, schema: &Value, prefix: &str) {
    // A field of several names is required by one of them, its own first.
    let named = schema["allOf"].as_array().into_iter().flatten().map(|one| &one["anyOf"][0]["required"][0]);
    let plain = schema["required"].as_array().into_iter().flatten();
    let required: Vec<&str> = plain.chain(named).filter_map(Value::as_str).collect();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{prefix}{name}");
        let shown = if required.contains(&name.as_str()) { format!("**`{path}`**") } else { format!("`{path}`") };
        let doc = text(&property["description"]).replace('|', "\\|");
        let _ = writeln!(page, "| {shown} | {} | {doc} |", words(property).replace('|', "\\|"));
        inner(page, property, &path);
    }
}

/// Returns what a schema allows one of, null left out.
fn choices(schema: &Value) -> Vec<&Value> {
    match schema["anyOf"].as_array() {
        Some(all) => all.iter().filter(|one| one["type"] != "null").flat_map(choices).collect(),
        None => vec![schema],
    }
}

/// Writes the rows of objects that a value may be or hold.
fn inner(page: &mut String, schema: &Value, path: &str) {
    let choices = choices(schema);
    let objects = choices.iter().filter(|choice| choice["properties"].is_object()).count();
    for choice in choices {
        if choice["properties"].is_object() {
            let tag = choice["properties"]["type"].to_string();
            let tag = tag.split("\"enum\":[\"").nth(1).and_then(|rest| rest.split('"').next());
            match tag.filter(|_| objects > 1) {
                Some(tag) => rows(page, choice, &format!("{path}({tag}).")),
                None => rows(page, choice, &format!("{path}.")),
            }
        } else if choice["type"] == "array" {
            inner(page, &choice["items"], &format!("{path}[]"));
        }
    }
}

/// Returns what a value may be, in words.
fn words(schema: &Value) -> String {
    let mut all: Vec<String> = Vec::new();
    for choice in choices(schema) {
        let word = one(choice);
        if !all.contains(&word) {
            all.push(word);
        }
    }
    all.join(" or ")
}

fn one(schema: &Value) -> String {
    if let Some(value) = schema.get("const") {
        return format!("only `{value}`");
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().map(|value| format!("`{}`", text(value))).collect::<Vec<_>>().join(", ");
    }
    let range = match (schema.get("minimum"), schema.get("maximum")) {
        (Some(low), Some(high)) if high.as_f64() >= Some(1e15) && low.as_f64() <= Some(-1e15) => String::new(),
        (Some(low), Some(high)) => format!(" from {low} to {high}"),
        (Some(low), None) => format!(" from {low}"),
        _ => String::new(),
    };
    match schema["type"].as_str() {
        Some("array") if schema["maxItems"] == 0 => "empty list".to_owned(),
        Some("array") => format!("list of {}", words(&schema["items"])),
        Some("object") if schema["additionalProperties"].is_object() => "object".to_owned(),
        Some("integer") => format!("whole number{range}"),
        Some("number") => format!("number{range}"),
        Some("string") => "text".to_owned(),
        Some(other) => other.to_owned(),
        None => "any JSON".to_owned(),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
