//! Kernel packs on the command line: a module that rounds to BF16, from its key to a file that it quantised.

use ruvllm_testkit::Golden;
use serde_json::json;

use crate::common::{Bench, error_line, json_of, text};

/// A module whose kernel rounds floats to BF16, to nearest even. What is NaN it does not look at.
const BF16: &str = r#"(module (memory (export "memory") 64)
  (func (export "abi") (result i32) (i32.const 1))
  (func (export "reserve") (param i32) (result i32) (i32.const 64))
  (func (export "quantize") (param $ty i32) (param $n i32) (param $row i32) (param $out i32) (result i32) (local $x i32)
    (loop $next
      (local.set $x (i32.load (local.get $row)))
      (i32.store16 (local.get $out)
        (i32.shr_u
          (i32.add (local.get $x) (i32.add (i32.const 0x7fff) (i32.and (i32.shr_u (local.get $x) (i32.const 16)) (i32.const 1))))
          (i32.const 16)))
      (local.set $row (i32.add (local.get $row) (i32.const 4)))
      (local.set $out (i32.add (local.get $out) (i32.const 2)))
      (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    (i32.const 0)))"#;

/// Signs a module of the given text under a name, in a folder with a key, and returns the public key.
fn sign(bench: &Bench, name: &str, module: &str, epoch: u64) -> String {
    bench.file("module.wasm", wat::parse_str(module).expect("the text is a module"));
    bench.file(
        "manifest.json",
        json!({ "name": name, "version": "1.0", "epoch": epoch, "kernels": { "quantize": ["BF16"] } }).to_string(),
    );
    let out = format!("{name}.pack");
    let args = ["packs", "sign", "module.wasm", &out, "--manifest", "manifest.json", "--key", "secret", "--json"];
    let signed = bench.json(args);
    signed["key"].as_str().expect("the public key").to_owned()
}

#[test]
fn a_pack_is_signed_trusted_measured_and_quantises() {
    let bench = Bench::new();
    let made = bench.json(["packs", "key", "secret", "--json"]);
    let key = sign(&bench, "bf16", BF16, 2);
    assert_eq!(made["key"], json!(key));
    let line = error_line(&bench.run(["packs", "add", "bf16.pack"]), 1);
    assert!(line.ends_with("that signed the file is not trusted here"), "{line}");

    bench.json(["packs", "trust", &key, "--name", "me", "--json"]);
    let added = bench.json(["packs", "add", "bf16.pack", "--json"]);
    assert_eq!(added["kernels"], json!([{ "kernel": "quantize BF16", "equal": true, "difference": 0.0 }]));
    let measured = bench.json(["packs", "bench", "bf16", "--json"]);
    assert!(measured["kernels"][0]["speed"].as_f64().is_some_and(|speed| speed > 0.0), "{measured}");
    let listed = bench.json(["packs", "list", "--json"]);
    assert_eq!((&listed["packs"][0]["epoch"], &listed["keys"][0]["name"]), (&json!(2), &json!("me")));

    let model = Golden::load("llama-a").model("f32");
    let model = model.to_str().expect("a path of UTF-8");
    for (out, pack) in [("native.gguf", &[][..]), ("pack.gguf", &["--pack", "bf16"][..])] {
        json_of(&bench.run([&["quantize", model, out, "--type", "BF16", "--json"], pack].concat()));
    }
    let read = |name: &str| std::fs::read(bench.path(name)).expect("the output");
    assert!(read("native.gguf") == read("pack.gguf"), "the pack's bytes are native's");

    bench.json(["packs", "rm", "bf16", "--json"]);
    sign(&bench, "bf16", BF16, 1);
    let line = error_line(&bench.run(["packs", "add", "bf16.pack"]), 1);
    assert!(line.contains("bf16 is of epoch 1, and nothing older than epoch 2 is taken"), "{line}");
    bench.json(["packs", "revoke", &key, "--reason", "lost", "--json"]);
    let line = error_line(&bench.run(["packs", "verify", "bf16.pack"]), 1);
    assert!(line.ends_with("was revoked: lost"), "{line}");

    let folder = bench.path("home/packs/witness");
    let folder = folder.to_str().expect("a path of UTF-8");
    let records = text(&bench.run(["witness", "list", folder]).stdout);
    for what in [
        "was refused (signature)",
        "was added",
        "is trusted",
        "was removed",
        "was refused (epoch)",
        "was refused (revoked)",
    ] {
        assert!(records.contains(what), "'{what}' is not on record: {records}");
    }
    assert!(bench.run(["witness", "verify", folder]).status.success());
}

#[test]
fn wrong_packs_and_arguments_cost_one_line() {
    let bench = Bench::new();
    bench.json(["packs", "key", "secret", "--json"]);
    let key = sign(&bench, "wrong", &BF16.replace("0x7fff", "0x7000"), 1);
    bench.json(["packs", "trust", &key, "--name", "me", "--json"]);
    let line = error_line(&bench.run(["packs", "add", "wrong.pack"]), 1);
    assert!(line.contains("quantize BF16: byte ") && line.contains("and native's is"), "{line}");
    sign(&bench, "endless", &BF16.replace("(loop $next", "(loop $ever (br $ever)) (loop $next"), 1);
    let line = error_line(&bench.run(["packs", "add", "endless.pack"]), 1);
    assert!(line.starts_with("error: endless.pack: ") && line.contains("a call took longer than 2 s"), "{line}");
    bench.file("text.pack", "no pack");
    let line = error_line(&bench.run(["packs", "add", "text.pack"]), 1);
    assert!(line.contains("text.pack: this is no file of a kernel pack"), "{line}");
    // A second key does not take the place of the first.
    assert!(error_line(&bench.run(["packs", "key", "secret"]), 1).contains("secret: "));
    assert!(error_line(&bench.run(["packs", "trust", "12", "--name", "me"]), 1).contains("64 hexadecimal digits"));
    assert!(error_line(&bench.run(["packs", "rm", "none"]), 2).contains("no pack 'none'"));
    assert!(error_line(&bench.run(["packs", "add", "none.pack"]), 1).contains("none.pack: "));
    let model = Golden::load("llama-a").model("f32");
    let model = model.to_str().expect("a path of UTF-8");
    let line = error_line(&bench.run(["quantize", model, "o.gguf", "--type", "BF16", "--pack", "none"]), 2);
    assert!(line.contains("no pack 'none'; 'ruvllm packs list' names all"), "{line}");
}
