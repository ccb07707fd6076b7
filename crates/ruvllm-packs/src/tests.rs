//! Packs as strangers may write them. Modules are texts of WebAssembly; the right ones copy F32, which is its own quantisation.

use super::*;
use crate::sandbox::Compiled;

/// Texts of a module, of which a test replaces one.
struct Module {
    /// Declarations before the functions.
    head: &'static str,
    abi: &'static str,
    reserve: &'static str,
    embed: &'static str,
}

/// A module whose kernel copies.
const COPIES: Module = Module {
    head: r#"(memory (export "memory") 16)"#,
    abi: "(i32.const 1)",
    reserve: "(i32.const 64)",
    embed: "(memory.copy (local.get $out) (local.get $row) (i32.mul (local.get $n) (i32.const 4))) (i32.const 0)",
};

impl Module {
    fn binary(&self) -> Vec<u8> {
        let Module { head, abi, reserve, embed } = self;
        let text = format!(
            r#"(module {head}
              (func (export "abi") (result i32) {abi})
              (func (export "reserve") (param i32) (result i32) {reserve})
              (func $embed (export "embed") (param $ty i32) (param $n i32) (param $row i32) (param $out i32) (result i32) {embed}))"#
        );
        wat::parse_str(text).expect("the text is a module")
    }
}

fn key(n: u8) -> SigningKey {
    SigningKey::from_seed([n; 32])
}

fn manifest(epoch: u64) -> String {
    format!(r#"{{"name":"copies","version":"1","epoch":{epoch},"kernels":{{"embed":["F32"]}}}}"#)
}

fn signed(module: &Module, epoch: u64) -> Vec<u8> {
    let (manifest, module) = (manifest(epoch), module.binary());
    PackFile { manifest: manifest.as_bytes(), module: &module }.sign(&key(1)).expect("a pack")
}

/// A folder that trusts the first key.
fn trusting() -> (tempfile::TempDir, PackFolder) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut packs = PackFolder::open(folder.path()).expect("an empty folder");
    packs.trust(trusted(1, 0)).expect("a key");
    (folder, packs)
}

fn trusted(n: u8, epoch: u64) -> TrustedKey {
    TrustedKey { name: format!("key {n}"), key: key(n).public().to_string(), epoch }
}

/// Returns how a module is refused.
fn refused(module: &Module) -> (PackErrorKind, String) {
    let (_folder, mut packs) = trusting();
    let error = packs.add(&signed(module, 1)).expect_err("it is refused");
    assert!(packs.packs().is_empty() && !error.to_string().contains('\n'), "{error}");
    (error.kind(), error.to_string())
}

#[test]
fn a_right_pack_is_taken_and_runs() {
    let (folder, mut packs) = trusting();
    let file = signed(&COPIES, 3);
    let verified = packs.add(&file).expect("a right pack");
    assert_eq!((verified.findings.len(), verified.findings[0].is_equal()), (1, true));
    let timings = bench(&mut { verified.pack }).expect("it runs");
    packs.set_speed("copies", &timings).expect("it is there");

    let packs = PackFolder::open(folder.path()).expect("the folder again");
    assert_eq!((packs.packs()[0].epoch, packs.packs()[0].speed.len()), (3, 1));
    let mut pack = packs.start("copies").expect("it starts");
    let mut out = [0.0; 3];
    pack.embed(ruvllm_ggml::GgmlType::F32, bytemuck::cast_slice(&[1.5_f32, -2.0, 0.25]), &mut out).expect("it copies");
    assert_eq!(out, [1.5, -2.0, 0.25]);
    let error = pack.embed(ruvllm_ggml::GgmlType::Q8_0, &[0; 34], &mut [0.0; 32]).expect_err("it has no Q8_0");
    assert_eq!(error.to_string(), "the pack has no embed of Q8_0");
}

#[test]
fn what_nobody_trusted_signed_is_refused() {
    let (_folder, packs) = trusting();
    let (text, module) = (manifest(1), COPIES.binary());
    let stranger = PackFile { manifest: text.as_bytes(), module: &module }.sign(&key(2)).expect("a pack");
    assert_eq!(packs.verify(&stranger).expect_err("a stranger's").kind(), PackErrorKind::Signature);
    let file = signed(&COPIES, 1);
    for at in (8..file.len()).step_by(7) {
        let mut changed = file.clone();
        changed[at] ^= 1;
        assert_eq!(packs.verify(&changed).expect_err("changed").kind(), PackErrorKind::Signature, "byte {at}");
    }
    for n in 0..file.len() {
        let kind = packs.verify(&file[..n]).expect_err("cut").kind();
        assert!(matches!(kind, PackErrorKind::Signature | PackErrorKind::Invalid), "{n} bytes: {kind:?}");
    }
}

#[test]
fn revoked_keys_and_packs_are_refused() {
    let (_folder, mut packs) = trusting();
    let file = signed(&COPIES, 1);
    let sha256 = packs.add(&file).expect("a right pack").sha256;
    packs.revoke(Revocation { revoked: sha256, reason: "it leaks".to_owned() }).expect("a digest");
    for error in [packs.verify(&file).expect_err("revoked"), packs.start("copies").expect_err("revoked")] {
        assert_eq!(error.kind(), PackErrorKind::Revoked);
        assert!(error.to_string().ends_with("was revoked: it leaks"), "{error}");
    }
    packs.revoke(Revocation { revoked: key(1).public().to_string(), reason: String::new() }).expect("a key");
    assert_eq!(packs.verify(&signed(&COPIES, 2)).expect_err("revoked").kind(), PackErrorKind::Revoked);
    assert_eq!(packs.trust(trusted(1, 0)).expect_err("it stays revoked").kind(), PackErrorKind::Revoked);
    assert!(packs.revoke(Revocation { revoked: "12".to_owned(), reason: String::new() }).is_err());
}

#[test]
fn older_epochs_are_refused_also_after_removal() {
    let (_folder, mut packs) = trusting();
    packs.add(&signed(&COPIES, 5)).expect("a right pack");
    packs.remove("copies").expect("it is there");
    let error = packs.add(&signed(&COPIES, 4)).expect_err("older");
    assert_eq!(error.to_string(), "copies is of epoch 4, and nothing older than epoch 5 is taken");
    packs.add(&signed(&COPIES, 5)).expect("the same epoch again");
    packs.trust(trusted(1, 9)).expect("a key");
    assert_eq!(packs.verify(&signed(&COPIES, 8)).expect_err("older than its key allows").kind(), PackErrorKind::Epoch);
    assert_eq!(packs.start("copies").expect_err("as well").kind(), PackErrorKind::Epoch);
}

#[test]
fn modules_that_ask_for_more_are_refused() {
    let cases = [
        (Module { head: r#"(import "env" "now" (func)) (memory (export "memory") 1)"#, ..COPIES }, "imports env.now"),
        (Module { head: r#"(memory 16)"#, ..COPIES }, "exports no 'memory'"),
        (Module { head: r#"(memory (export "memory") 65536)"#, ..COPIES }, "more than 256 MiB of memory"),
        (Module { abi: "(loop $again (br $again)) (i32.const 1)", ..COPIES }, "longer than 2 s"),
        (Module { embed: "(loop $again (br $again)) (i32.const 0)", ..COPIES }, "longer than 2 s"),
        (
            Module { embed: "(drop (memory.grow (i32.const 60000))) (i32.const 0)", ..COPIES },
            "more than 256 MiB of memory",
        ),
        (
            Module { embed: "(call $embed (local.get 0) (local.get 1) (local.get 2) (local.get 3))", ..COPIES },
            "used up its stack",
        ),
        (Module { embed: "unreachable", ..COPIES }, "the module failed"),
        (Module { embed: "(i32.load (i32.const -8))", ..COPIES }, "the module failed"),
        (Module { embed: "(i32.const -1)", ..COPIES }, "does not compute what its manifest says"),
        (Module { abi: "(i32.const 2)", ..COPIES }, "interface 2, and this program has 1"),
        (Module { reserve: "(i32.const -64)", ..COPIES }, "which its memory does not have"),
    ];
    for (module, says) in cases {
        let (kind, line) = refused(&module);
        assert_eq!(kind, PackErrorKind::Sandbox, "{line}");
        assert!(line.contains(says), "'{line}' does not say '{says}'");
    }
    let (_folder, packs) = trusting();
    let bytes = PackFile { manifest: manifest(1).as_bytes(), module: b"\0asm" }.sign(&key(1)).expect("a pack");
    assert_eq!(packs.verify(&bytes).expect_err("no module").kind(), PackErrorKind::Sandbox);
    let text = r#"{"name":"copies","version":"1","epoch":1,"kernels":{"attention":[]}}"#;
    let bytes = PackFile { manifest: text.as_bytes(), module: &COPIES.binary() }.sign(&key(1)).expect("a pack");
    let error = packs.verify(&bytes).expect_err("it has no attention");
    assert_eq!(error.to_string(), "the module exports no 'attention' as the interface has it");
}

#[test]
fn wrong_results_are_refused() {
    let cases = [
        (Module { embed: "(i32.const 0)", ..COPIES }, "and native's is"),
        (
            Module { embed: "(f32.store (local.get $out) (f32.const nan)) (i32.const 0)", ..COPIES },
            "value 0 is NaN, and native's is",
        ),
        (
            // The last value alone is wrong, by its last bit.
            Module {
                embed: "(memory.copy (local.get $out) (local.get $row) (i32.mul (local.get $n) (i32.const 4)))
                  (local.set $out (i32.add (local.get $out) (i32.mul (i32.sub (local.get $n) (i32.const 1)) (i32.const 4))))
                  (i32.store (local.get $out) (i32.xor (i32.load (local.get $out)) (i32.const 1))) (i32.const 0)",
                ..COPIES
            },
            "and native's is",
        ),
    ];
    for (module, says) in cases {
        let (kind, line) = refused(&module);
        assert_eq!(kind, PackErrorKind::Result, "{line}");
        assert!(line.starts_with("embed F32: value ") && line.contains(says) && line.contains("(seed "), "{line}");
    }
}

/// A pack that rounds floats to BF16: it adds `round` to the bits `$x`, and cuts the lower half off.
fn bf16(round: &str) -> Pack {
    let text = format!(
        r#"(module (memory (export "memory") 16)
          (func (export "abi") (result i32) (i32.const 1))
          (func (export "reserve") (param i32) (result i32) (i32.const 64))
          (func (export "quantize") (param $ty i32) (param $n i32) (param $row i32) (param $out i32) (result i32) (local $x i32)
            (loop $next
              (local.set $x (i32.load (local.get $row)))
              (i32.store16 (local.get $out) (i32.shr_u (i32.add (local.get $x) {round}) (i32.const 16)))
              (local.set $row (i32.add (local.get $row) (i32.const 4)))
              (local.set $out (i32.add (local.get $out) (i32.const 2)))
              (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
            (i32.const 0)))"#
    );
    let manifest = r#"{"name":"bf16","version":"1","epoch":1,"kernels":{"quantize":["BF16"]}}"#;
    let manifest = Manifest::parse(manifest.as_bytes()).expect("a manifest");
    let module = Compiled::new(&wat::parse_str(text).expect("the text is a module")).expect("it compiles");
    Pack::start(manifest, &module).expect("it starts")
}

#[test]
fn rare_faults_are_met_with_every_seed() {
    let even = "(i32.add (i32.const 0x7fff) (i32.and (i32.shr_u (local.get $x) (i32.const 16)) (i32.const 1)))";
    // Half is rounded up where native rounds to even.
    let mut up = bf16("(i32.const 0x8000)");
    // One value in a thousand comes out too large.
    let rare = "(i32.shl (i32.eq (i32.and (local.get $x) (i32.const 1023)) (i32.const 333)) (i32.const 16))";
    let mut rare = bf16(&format!("(i32.add {even} {rare})"));
    let mut even = bf16(even);
    for seed in 0..50 {
        assert!(check(&mut even, seed).expect("native's rounding")[0].is_equal());
        assert_eq!(check(&mut up, seed).expect_err("half up").kind(), PackErrorKind::Result, "seed {seed}");
        assert_eq!(check(&mut rare, seed).expect_err("too large").kind(), PackErrorKind::Result, "seed {seed}");
    }
}

#[test]
fn manifests_are_checked_before_they_are_signed() {
    let sign = |text: &str| PackFile { manifest: text.as_bytes(), module: b"" }.sign(&key(1));
    let cases = [
        ("{}", "missing field"),
        (r#"{"name":"../x","version":"1","epoch":1,"kernels":{"embed":["F32"]}}"#, "'../x' is no name of a pack"),
        (r#"{"name":"x","version":"1","epoch":1,"kernels":{}}"#, "no kernels"),
        (r#"{"name":"x","version":"1","epoch":1,"kernels":{"softmax":[]}}"#, "unknown variant `softmax`"),
        (r#"{"name":"x","version":"1","epoch":1,"kernels":{"embed":["Q9"]}}"#, "there is no type 'Q9'"),
        (r#"{"name":"x","version":"1","epoch":1,"kernels":{"embed":[]}}"#, "embed names no types"),
        (r#"{"name":"x","version":"1","epoch":1,"kernels":{"attention":["F32"]}}"#, "attention has no types"),
        (r#"{"name":"x","version":"1","epoch":-1,"kernels":{"embed":["F32"]}}"#, "invalid value"),
    ];
    for (text, says) in cases {
        let error = sign(text).expect_err(text);
        assert!(error.kind() == PackErrorKind::Invalid && error.to_string().contains(says), "{error}");
    }
    assert!(sign(&format!("{{{}", " ".repeat(1 << 17))).is_err());
}

#[test]
fn a_folder_whose_file_is_damaged_says_where() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("packs.toml");
    for (text, says) in [
        ("trusted = 1", "line 1"),
        ("[epochs]\na = 1\nb = \"x\"", "line 3"),
        ("[[trusted]]\nname = \"a\"\nkey = \"12\"", "64 hexadecimal digits"),
        ("[[trusts]]", "unknown field `trusts`"),
    ] {
        std::fs::write(&path, text).expect("a file");
        let error = PackFolder::open(folder.path()).expect_err(text).to_string();
        assert!(error.contains("packs.toml") && error.contains(says) && !error.contains('\n'), "{error}");
    }
}
