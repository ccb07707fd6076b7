//! Keys that an admin key makes, lists and deletes while the server runs.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::time::Duration;

use ruvllm_engine::LoadOptions;
use ruvllm_server::{KeyOptions, ServerOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::{Bench, Reply, load_options, options, tiny_chat};

const FILE: &str = "# who may\nroot key-of-root admin\nann  key-of-ann concurrent=4 # a comment\n";

/// A server with a key file, and the folder that the file lies in.
struct Keyed {
    bench: Bench,
    folder: TempDir,
}

impl Keyed {
    fn new() -> Keyed {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("keys");
        std::fs::write(&file, FILE).expect("written");
        let keys = KeyOptions { file: Some(file), lines: vec!["env key-of-env".to_owned()] };
        let (model, path) = tiny_chat();
        let load = LoadOptions { n_ctx: Some(60_000), ..load_options() };
        let bench = Bench::new(&path, &load, ServerOptions { keys, ..options() });
        drop(model);
        Keyed { bench, folder }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("keys")
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.file()).expect("the key file")
    }

    fn ask(&self, key: &str, method: &str, path: &str) -> Reply {
        self.bench.ask(method, path, &[("authorization", &format!("Bearer {key}"))])
    }

    fn create(&self, key: &str, body: &Value) -> Reply {
        self.bench.send("/v1/keys", body.to_string(), &[("authorization", &format!("Bearer {key}"))])
    }

    fn list(&self) -> Vec<Value> {
        let reply = self.ask("key-of-root", "GET", "/v1/keys");
        let list = reply.ok();
        assert_eq!(list["object"], "list");
        for secret in ["key-of", "sk-", "sha256"] {
            assert!(!reply.body.contains(secret), "{}", reply.body);
        }
        list["data"].as_array().expect("a list").clone()
    }

    /// Returns the id of the first key of a name.
    fn id(&self, name: &str) -> String {
        let found = self.list().into_iter().find(|key| key["name"] == name).expect("a key of this name");
        found["id"].as_str().expect("a text").to_owned()
    }

    fn delete(&self, key: &str, id: &str) -> Reply {
        self.ask(key, "DELETE", &format!("/v1/keys/{id}"))
    }
}

#[test]
fn a_key_is_made_used_listed_and_deleted() {
    let server = Keyed::new();
    let body = json!({ "name": "guest", "concurrent": 2, "priority": -3, "kv_mib": 64, "adapter_mib": 8 });
    let reply = server.create("key-of-root", &body);
    let made = reply.ok();
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    let key = made["key"].as_str().expect("the key, once").to_owned();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    assert!(key.len() == 46 && key.starts_with("sk-") && key.chars().all(is_plain), "{key}");
    let mut described = made.clone();
    described.as_object_mut().expect("an object").remove("key");
    let id = made["id"].as_str().expect("an id").to_owned();
    assert_eq!(
        described,
        json!({
            "id": id, "object": "api_key", "name": "guest", "is_admin": false, "concurrent": 2, "priority": -3,
            "kv_mib": 64, "adapter_mib": 8, "source": "file", "can_be_deleted": true,
        })
    );
    // The file has its SHA-256, and everything else as it was.
    let text = server.text();
    assert!(text.starts_with(FILE) && text[FILE.len()..].starts_with(&format!("guest sha256:{id}")), "{text}");
    assert!(!text.contains(&key));
    assert_eq!(server.ask(&key, "GET", "/v1/models").status, 200);
    let list = server.list();
    let names: Vec<&str> = list.iter().filter_map(|key| key["name"].as_str()).collect();
    assert_eq!(names, ["root", "ann", "guest", "env"]);
    assert_eq!(
        (&list[2], &list[3]["source"], &list[3]["can_be_deleted"]),
        (&described, &json!("options"), &json!(false))
    );
    // What runs by it ends with it.
    let body = json!({ "prompt": "Once", "max_tokens": 50_000, "ignore_eos": true, "stream": true }).to_string();
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n");
    let more = format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let stream = server.bench.write(format!("{head}{more}"));
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert_ne!(stream.read_line(&mut line).expect("an answer"), 0);
    }
    let deleted = server.delete("key-of-root", &id).ok();
    assert_eq!(deleted, json!({ "id": id, "object": "api_key", "deleted": true }));
    assert_eq!(server.ask(&key, "GET", "/v1/models").refusal(), "401 the API key is not known to this server");
    assert_eq!(server.text(), FILE);
    let mut rest = [0; 4096];
    let mut told = String::new();
    while !told.contains("the API key was revoked") {
        let n = stream.read(&mut rest).expect("the rest of the answer");
        assert_ne!(n, 0, "the answer ended with {told}");
        told.push_str(&String::from_utf8_lossy(&rest[..n]));
    }
    let gone = server.delete("key-of-root", &id);
    assert_eq!(gone.refusal(), "404 there is no key with this id; GET /v1/keys lists them");
}

#[test]
fn only_an_admin_key_administers_keys_and_one_stays() {
    let server = Keyed::new();
    let line = "403 this key may not administer keys; write the word admin behind it in the key file";
    let (root, ann) = (server.id("root"), server.id("ann"));
    for reply in [
        server.ask("key-of-ann", "GET", "/v1/keys"),
        server.create("key-of-ann", &json!({ "name": "ann" })),
        server.delete("key-of-ann", &ann),
        server.delete("key-of-env", &ann),
    ] {
        assert_eq!((reply.refusal().as_str(), &reply.json()["error"]["code"]), (line, &json!("not_admin")));
    }
    assert_eq!(server.bench.get("/v1/keys").status, 401);
    let manages = |key: &str| server.ask(key, "GET", "/v1/capabilities").ok()["manages_keys"].clone();
    assert_eq!(
        (manages("key-of-root"), manages("key-of-ann"), manages("none")),
        (json!(true), json!(false), json!(false))
    );
    let last = server.delete("key-of-root", &root).refusal();
    assert!(last.starts_with("409 this is the last admin key"), "{last}");
    let env = server.delete("key-of-root", &server.id("env")).refusal();
    assert!(env.starts_with("409 the key of 'env' is no line of the key file"), "{env}");
    for (body, refusal) in [
        (json!({}), "400 'name' is missing"),
        (json!({ "name": "a b" }), "400 a name has 1 to 100 characters"),
        (json!({ "name": "a\nroot2 key-of-eve admin" }), "400 a name has 1 to 100 characters"),
        (json!({ "name": "a", "concurrent": 0 }), "400 'concurrent'"),
        (json!({ "name": "a", "key": "of-my-own" }), "400 "),
    ] {
        let told = server.create("key-of-root", &body).refusal();
        assert!(told.starts_with(refusal), "{told}");
    }
    assert_eq!(server.text(), FILE);
    // With another admin key the first can go, but not by itself.
    let second = server.create("key-of-root", &json!({ "name": "root", "is_admin": true })).ok();
    let second = second["key"].as_str().expect("the key");
    assert_eq!(
        server.delete("key-of-root", &root).refusal(),
        "409 a key cannot delete itself; ask with another admin key"
    );
    server.delete(second, &root).ok();
    assert_eq!(server.ask("key-of-root", "GET", "/v1/keys").status, 401);
    assert_eq!(server.ask(second, "GET", "/v1/keys").ok()["data"].as_array().map(Vec::len), Some(3));
}

#[test]
fn keys_made_at_once_are_all_there() {
    let server = Keyed::new();
    let make = |i: usize| {
        let made = server.create("key-of-root", &json!({ "name": format!("guest-{i}") })).ok();
        made["key"].as_str().expect("the key").to_owned()
    };
    let keys: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..12).map(|i| scope.spawn(move || make(i))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let distinct: BTreeSet<&String> = keys.iter().collect();
    assert_eq!((distinct.len(), server.list().len(), server.text().lines().count()), (12, 3 + 12, 3 + 12));
    assert!(keys.iter().all(|key| server.ask(key, "GET", "/v1/models").status == 200));
    // Nothing is left in the folder but the file.
    assert_eq!(std::fs::read_dir(server.folder.path()).expect("a folder").count(), 1);
}

#[test]
fn a_file_that_cannot_be_replaced_stays_as_it_is() {
    let server = Keyed::new();
    // The place of the new file is taken, as one in a folder that may not be written to cannot be made. Those who may do
    // everything may write to such a folder as well.
    let name = format!("keys.{}.new", std::process::id());
    std::fs::create_dir(server.folder.path().join(name)).expect("made");
    let new = json!({ "name": "guest" });
    for reply in [server.create("key-of-root", &new), server.delete("key-of-root", &server.id("ann"))] {
        let told = reply.refusal();
        assert!(told.starts_with("500 the key file ") && told.contains("is as it was"), "{told}");
        assert!(told.ends_with("the server has to write files in its folder") && !told.contains('\n'), "{told}");
        assert_eq!(reply.json()["error"]["code"], "key_file");
    }
    assert_eq!((server.text().as_str(), server.list().len()), (FILE, 3));
    assert_eq!(server.ask("key-of-ann", "GET", "/v1/models").status, 200);
    // A file with a wrong line is mended by whoever broke it.
    std::fs::write(server.file(), format!("{FILE}eve short\n")).expect("written");
    let told = server.create("key-of-root", &new).refusal();
    assert!(told.starts_with("409 the key file has to be mended") && told.contains("line 4"), "{told}");
}

#[test]
fn without_a_key_file_there_is_nothing_to_administer() {
    let line = "404 this server has no key file; start it with --api-key-file FILE";
    let open = Bench::tiny(options());
    assert_eq!(
        (open.get("/v1/keys").refusal().as_str(), open.get("/v1/capabilities").ok()["manages_keys"].clone()),
        (line, json!(false))
    );
    let keys = KeyOptions { file: None, lines: vec!["root key-of-root admin".to_owned()] };
    let keyed = Bench::tiny(ServerOptions { keys, ..options() });
    let reply = keyed.send("/v1/keys", json!({ "name": "a" }).to_string(), &[("x-api-key", "key-of-root")]);
    assert_eq!(reply.refusal(), line);
}
