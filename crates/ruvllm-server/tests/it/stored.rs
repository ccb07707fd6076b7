//! Answers and conversations that the server keeps: chained, listed, removed, each key's for itself, across restarts and
//! within bounds.

use std::io::Read;

use ruvllm_server::{KeyOptions, ServerOptions, WitnessOptions};
use ruvllm_testkit::real_model;
use serde_json::{Value, json};

use crate::client::{Bench, Reply, load_options, options};

const RESPONSES: &str = "/v1/responses";
const CONVERSATIONS: &str = "/v1/conversations";

/// One who asks, with a key or without.
struct Asker<'b> {
    bench: &'b Bench,
    key: &'static str,
}

impl Asker<'_> {
    fn send(&self, method: &str, path: &str, body: &Value) -> Reply {
        let bearer = format!("Bearer {}", self.key);
        let headers = [("authorization", bearer.as_str())];
        match method {
            "POST" => self.bench.send(path, body.to_string(), &headers),
            _ => self.bench.ask(method, path, &headers),
        }
    }

    fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &Value::Null)
    }

    fn delete(&self, path: &str) -> Reply {
        self.send("DELETE", path, &Value::Null)
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.send("POST", path, body).ok()
    }

    /// Asks for an answer of a few tokens.
    fn answer(&self, body: Value) -> Value {
        let mut body = body;
        body["max_output_tokens"] = json!(4);
        self.post(RESPONSES, &body)
    }
}

fn open(bench: &Bench) -> Asker<'_> {
    Asker { bench, key: "" }
}

fn id(value: &Value) -> &str {
    value["id"].as_str().expect("an id")
}

fn texts(list: &Value) -> Vec<&str> {
    let items = list["data"].as_array().expect("a list").iter();
    items.map(|item| item["content"][0]["text"].as_str().unwrap_or_default()).collect()
}

fn text(answer: &Value) -> &str {
    answer["output"][0]["content"][0]["text"].as_str().expect("a text")
}

fn n_input(answer: &Value) -> u64 {
    answer["usage"]["input_tokens"].as_u64().expect("a count")
}

/// What an answer says beside its own name and times.
fn essence(answer: &Value) -> Value {
    json!([text(answer), n_input(answer)])
}

#[test]
fn answers_go_on_from_earlier_ones() {
    let bench = Bench::tiny(options());
    let asker = open(&bench);
    let first =
        asker.answer(json!({ "input": "Name a river.", "instructions": "Be brief.", "metadata": { "k": "v" } }));
    assert_eq!((&first["store"], &first["metadata"]), (&json!(true), &json!({ "k": "v" })));
    assert_eq!(asker.get(&format!("{RESPONSES}/{}", id(&first))).ok(), first);
    let second = asker.answer(json!({ "input": "Another one.", "previous_response_id": id(&first) }));
    assert_eq!(second["previous_response_id"], first["id"]);
    let third = asker.answer(json!({ "input": "And a third.", "previous_response_id": id(&second), "store": false }));
    assert_eq!(third["store"], false);
    assert_eq!(asker.get(&format!("{RESPONSES}/{}", id(&third))).status, 404);

    // The same, said in full; what the first was told is not.
    let user = |text: &str| json!({ "role": "user", "content": text });
    let said = |answer: &Value| answer["output"][0].clone();
    let mut whole = vec![user("Name a river."), said(&first), user("Another one.")];
    let again = |items: &[Value]| asker.answer(json!({ "input": items, "store": false }));
    assert_eq!(essence(&again(&whole)), essence(&second));
    whole.extend([said(&second), user("And a third.")]);
    assert_eq!(essence(&again(&whole)), essence(&third));

    let list = |id: &str, query: &str| asker.get(&format!("{RESPONSES}/{id}/input_items{query}")).ok();
    let all = list(id(&second), "?order=asc");
    assert_eq!(texts(&all), ["Name a river.", text(&first), "Another one."]);
    assert_eq!((&all["has_more"], &all["last_id"]), (&json!(false), &all["data"][2]["id"]));
    assert_eq!(texts(&list(id(&second), "")), ["Another one.", text(&first), "Name a river."]);
    let page = list(id(&second), "?limit=1&include[]=x");
    assert_eq!((texts(&page), &page["has_more"]), (vec!["Another one."], &json!(true)));
    let next = list(id(&second), &format!("?limit=2&after={}", id(&page["data"][0])));
    assert_eq!((texts(&next), &next["has_more"]), (vec![text(&first), "Name a river."], &json!(false)));
    for query in ["?limit=0", "?limit=x", "?order=up", "?after=x", "?colour=red"] {
        assert_eq!(asker.get(&format!("{RESPONSES}/{}/input_items{query}", id(&first))).status, 400, "{query}");
    }

    let removed = asker.delete(&format!("{RESPONSES}/{}", id(&first))).ok();
    assert_eq!(removed, json!({ "id": first["id"], "object": "response", "deleted": true }));
    let gone = asker.get(&format!("{RESPONSES}/{}", id(&first)));
    assert!(gone.refusal().starts_with("404 Response with id 'resp_"), "{}", gone.body);
    assert_eq!(asker.delete(&format!("{RESPONSES}/{}", id(&first))).status, 404);
    for (previous, line) in
        [(id(&first), "not found."), (id(&second), "which is not kept any more"), ("x", "not found.")]
    {
        let refused = bench.post(RESPONSES, &json!({ "input": "x", "previous_response_id": previous }));
        assert!(refused.refusal().starts_with("400 ") && refused.body.contains(line), "{}", refused.body);
        assert_eq!(refused.json()["error"]["code"], "previous_response_not_found");
    }
    let refused = bench.post(RESPONSES, &json!({ "max_output_tokens": 1 })).refusal();
    assert!(refused.starts_with("400 'input' is missing"), "{refused}");
}

#[test]
fn streamed_answers_are_kept_and_those_whose_client_left_are_not() {
    let bench = Bench::tiny(options());
    let asker = open(&bench);
    let body = json!({ "input": "a b c", "stream": true, "max_output_tokens": 4 });
    let reply = bench.post(RESPONSES, &body);
    let last = reply.body.lines().rfind(|line| line.starts_with("data: ")).expect("events");
    let last: Value = serde_json::from_str(&last["data: ".len()..]).expect("JSON");
    assert_eq!((&last["type"], &last["response"]["store"]), (&json!("response.incomplete"), &json!(true)));
    let kept = asker.get(&format!("{RESPONSES}/{}", id(&last["response"]))).ok();
    assert_eq!(kept, last["response"]);
    asker.answer(json!({ "input": "d", "previous_response_id": id(&kept) }));

    // A model that is slow enough to be left in the middle of an answer.
    let bench = Bench::named("smollm2:135m", &real_model("smollm2:135m"), &load_options(), options());
    let asker = open(&bench);
    let body = json!({ "input": "Tell me a long story.", "stream": true });
    let mut stream = bench.open(RESPONSES, &body);
    let (mut head, mut buffer) = (String::new(), [0; 512]);
    let id = loop {
        let n = stream.read(&mut buffer).expect("an answer");
        head.push_str(&String::from_utf8_lossy(&buffer[..n]));
        if let Some(at) = head.find("resp_")
            && let Some(id) = head[at..].split_once('"')
        {
            break id.0.to_owned();
        }
    };
    drop(stream);
    bench.wait_until_idle();
    assert_eq!(asker.get(&format!("{RESPONSES}/{id}")).status, 404);
}

#[test]
fn tokens_are_counted_as_the_answer_counts_them() {
    let bench = Bench::tiny(options());
    let asker = open(&bench);
    let first = asker.answer(json!({ "input": "Name a river." }));
    let tool = json!({ "type": "function", "name": "f", "parameters": { "type": "object", "properties": {} } });
    for body in [
        json!({ "input": "Name a river." }),
        json!({ "input": "x", "instructions": "Be brief.", "tools": [tool] }),
        json!({ "input": [{ "role": "user", "content": "y" }], "previous_response_id": id(&first) }),
    ] {
        let counted = asker.post("/v1/responses/input_tokens", &body);
        assert_eq!(counted, json!({ "object": "response.input_tokens", "input_tokens": n_input(&asker.answer(body)) }));
    }
    assert_eq!(bench.post("/v1/responses/input_tokens", &json!({ "input": "x", "stream": true })).status, 400);
}

#[test]
fn conversations_hold_what_was_said_in_them() {
    let bench = Bench::tiny(options());
    let asker = open(&bench);
    let begun = json!({ "items": [{ "role": "system", "content": "Be brief." }], "metadata": { "topic": "rivers" } });
    let conversation = asker.post(CONVERSATIONS, &begun);
    assert_eq!(
        (&conversation["object"], &conversation["metadata"]["topic"]),
        (&json!("conversation"), &json!("rivers"))
    );
    let path = format!("{CONVERSATIONS}/{}", id(&conversation));
    let first = asker.answer(json!({ "input": "Name a river.", "conversation": id(&conversation) }));
    assert_eq!(first["conversation"], json!({ "id": conversation["id"] }));
    let second = asker.answer(json!({ "input": "Another one.", "conversation": { "id": conversation["id"] } }));
    // What is not to be kept is not added.
    let unkept = json!({ "input": "x", "conversation": id(&conversation), "store": false });
    let unkept = asker.answer(unkept);
    let all = asker.get(&format!("{path}/items?order=asc")).ok();
    assert_eq!(texts(&all), ["Be brief.", "Name a river.", text(&first), "Another one.", text(&second)]);
    assert_eq!(texts(&asker.get(&format!("{path}/items?limit=1")).ok()), [text(&second)]);
    // The prompt is that of the whole, as is what the answer was made from.
    let whole: Vec<Value> = all["data"].as_array().expect("a list")[..4].to_vec();
    assert_eq!(essence(&asker.answer(json!({ "input": whole, "store": false }))), essence(&second));
    let made_from = asker.get(&format!("{RESPONSES}/{}/input_items?order=asc", id(&second))).ok();
    assert_eq!(texts(&made_from), texts(&all)[..4]);
    let on = asker.answer(json!({ "input": "x", "previous_response_id": id(&second) }));
    assert_eq!(n_input(&on), n_input(&unkept));

    let added = asker.post(&format!("{path}/items"), &json!({ "items": [{ "role": "user", "content": "last" }] }));
    let item = format!("{path}/items/{}", id(&added["data"][0]));
    assert_eq!(asker.get(&item).ok(), added["data"][0]);
    assert_eq!(asker.delete(&item).ok(), conversation);
    assert_eq!((asker.get(&item).status, asker.delete(&item).status), (404, 404));
    assert_eq!(texts(&asker.get(&format!("{path}/items")).ok()).len(), 5);

    let renamed = asker.post(&path, &json!({ "metadata": { "topic": "seas" } }));
    assert_eq!((&renamed["metadata"]["topic"], asker.get(&path).ok()), (&json!("seas"), renamed.clone()));
    let long = json!({ "metadata": { "topic": "x".repeat(513) } });
    assert_eq!(asker.send("POST", &path, &long).status, 400);
    let both = json!({ "input": "x", "conversation": id(&conversation), "previous_response_id": id(&first) });
    assert_eq!(asker.send("POST", RESPONSES, &both).status, 400);

    let removed = asker.delete(&path).ok();
    assert_eq!(removed, json!({ "id": conversation["id"], "object": "conversation.deleted", "deleted": true }));
    let refused = asker.send("POST", RESPONSES, &json!({ "input": "x", "conversation": id(&conversation) }));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (404, &json!("conversation_not_found")));
    for path in [&path, &format!("{path}/items"), &format!("{path}/items/x")] {
        assert_eq!(asker.get(path).status, 404, "{path}");
    }
}

#[test]
fn what_is_kept_is_its_keys_own_and_outlives_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let witness = WitnessOptions { folder: folder.path().join("log"), keeps_tokens: true, ..WitnessOptions::default() };
    let keys = ["ann key-of-ann", "bob key-of-bob"].map(str::to_owned).to_vec();
    let keys = KeyOptions { lines: keys, ..KeyOptions::default() };
    let serve = || Bench::tiny(ServerOptions { witness: Some(witness.clone()), keys: keys.clone(), ..options() });
    let bench = serve();
    let (ann, bob) = (Asker { bench: &bench, key: "key-of-ann" }, Asker { bench: &bench, key: "key-of-bob" });
    let first = ann.answer(json!({ "input": "a-secret-of-ann" }));
    let conversation = ann.post(CONVERSATIONS, &json!({ "items": [{ "role": "user", "content": "another-of-ann" }] }));
    let of_bob = bob.answer(json!({ "input": "words-of-bob" }));
    let (response, conversed) =
        (format!("{RESPONSES}/{}", id(&first)), format!("{CONVERSATIONS}/{}", id(&conversation)));
    for path in [&response, &format!("{response}/input_items"), &conversed, &format!("{conversed}/items")] {
        assert_eq!((ann.get(path).status, bob.get(path).status), (200, 404), "{path}");
    }
    assert_eq!((bob.delete(&response).status, bob.delete(&conversed).status), (404, 404));
    assert_eq!(bob.send("POST", &conversed, &json!({ "metadata": {} })).status, 404);
    let on = json!({ "input": "x", "previous_response_id": id(&first) });
    assert_eq!(bob.send("POST", RESPONSES, &on).status, 400);
    assert_eq!(bob.send("POST", RESPONSES, &json!({ "input": "x", "conversation": id(&conversation) })).status, 404);
    bench.join();

    let bench = serve();
    let (ann, bob) = (Asker { bench: &bench, key: "key-of-ann" }, Asker { bench: &bench, key: "key-of-bob" });
    assert_eq!((ann.get(&response).ok(), ann.get(&conversed).ok()), (first.clone(), conversation.clone()));
    ann.answer(on);
    assert_eq!(ann.delete(RESPONSES).ok()["deleted"], 3);
    assert_eq!((ann.get(&response).status, ann.get(&conversed).status), (404, 404));
    assert_eq!(bob.get(&format!("{RESPONSES}/{}", id(&of_bob))).ok(), of_bob);
    bench.join();
    // Nothing of hers is left in the file, without encryption.
    let raw = std::fs::read(witness.folder.join(ruvllm_witness::STORE_FILE)).expect("a file");
    let finds = |needle: &[u8]| raw.windows(needle.len()).any(|window| window == needle);
    assert!(!finds(b"a-secret-of-ann") && !finds(b"another-of-ann") && finds(b"words-of-bob"));
}

/// Without a store 32 MiB of a key are kept; the oldest go.
#[test]
fn the_oldest_go_where_there_is_no_room() {
    let bench = Bench::tiny(options());
    let asker = open(&bench);
    let first = asker.answer(json!({ "input": "a" }));
    let text = "x".repeat(7 << 20);
    let large = json!({ "items": [{ "role": "user", "content": text }] });
    let paths: Vec<String> =
        (0..5).map(|_| format!("{CONVERSATIONS}/{}", id(&asker.post(CONVERSATIONS, &large)))).collect();
    assert_eq!(asker.get(&format!("{RESPONSES}/{}", id(&first))).status, 404);
    assert_eq!(paths.iter().map(|path| asker.get(path).status).collect::<Vec<_>>(), [404, 200, 200, 200, 200]);
    // What is larger than all that is kept of one is refused.
    for _ in 0..2 {
        asker.post(&format!("{}/items", paths[4]), &large);
    }
    let refused = asker.send("POST", &format!("{}/items", paths[4]), &large);
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (413, &json!("conversation_too_large")));
    let refused =
        asker.send("POST", RESPONSES, &json!({ "input": "x", "conversation": &paths[4][CONVERSATIONS.len() + 1..] }));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
}

/// An answer that has been made is given, whatever becomes of its place among those that are kept.
#[test]
fn an_answer_that_cannot_be_kept_is_given() {
    let bench = Bench::tiny(ServerOptions { body_bytes_max: 32 << 20, ..options() });
    let asker = open(&bench);
    // The model does not read it, and no record is so large.
    let large = json!({ "type": "reasoning", "summary": [], "encrypted_content": "x".repeat(17 << 20) });
    let answer = asker.answer(json!({ "input": [large, { "role": "user", "content": "a" }] }));
    assert_eq!((&answer["status"], &answer["store"]), (&json!("incomplete"), &json!(false)));
    assert!(!text(&answer).is_empty());
    assert_eq!(asker.get(&format!("{RESPONSES}/{}", id(&answer))).status, 404);
    assert_eq!(bench.get("/ready").ok()["status"], "ready");
}

#[test]
fn an_item_that_is_kept_is_named_instead_of_sent() {
    let bench = Bench::tiny(options());
    let asker = open(&bench);
    let first = asker.answer(json!({ "input": "a b c", "max_output_tokens": 4 }));
    let listed = asker.get(&format!("{RESPONSES}/{}/input_items", id(&first))).ok();
    let (asked, said) = (&listed["data"][0], &first["output"][0]);
    let user = json!({ "role": "user", "content": "d" });
    let refers = |item: &Value| json!({ "type": "item_reference", "id": item["id"] });
    let count = |input: Value| {
        let counted = bench.post(&format!("{RESPONSES}/input_tokens"), &json!({ "input": input })).ok();
        counted["input_tokens"].as_u64().expect("a count")
    };
    let sent = count(json!([{ "role": "user", "content": "a b c" }, said, user]));
    assert_eq!(count(json!([refers(asked), refers(said), user])), sent);
    assert_eq!(count(json!([asked, said, user])), sent);
    for unknown in ["msg_1", "", "msg_000000000000000000000000", "resp"] {
        let body = json!({ "input": [{ "type": "item_reference", "id": unknown }] });
        let refusal = bench.post(RESPONSES, &body).refusal();
        assert!(refusal.starts_with("400 'input[0]' refers to the item"), "{refusal}");
    }
    // What is not kept is not found.
    let unkept = asker.answer(json!({ "input": "a", "max_output_tokens": 2, "store": false }));
    let body = json!({ "input": [refers(&unkept["output"][0])] });
    assert_eq!(bench.post(RESPONSES, &body).status, 400);
}
