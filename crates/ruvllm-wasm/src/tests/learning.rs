//! A model that is taught in a page.

use std::fs;

use ruvllm_testkit::Golden;
use serde_json::{Value, json};

use super::{finish, line, load, options, source};
use crate::WebEngine;

fn ask(engine: &mut WebEngine, text: &str) -> Value {
    let body = json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 16, "temperature": 0 });
    let id = engine.chat(&body.to_string()).expect("it is sound");
    finish(engine, id).1["result"].take()
}

fn said(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().expect("a text").trim()
}

#[test]
fn a_correction_is_given_again_also_after_it_was_exported_and_imported() {
    let mut engine = load("llama-a", &options(true));
    let first = ask(&mut engine, "Where is Ulm?");
    let body = json!({ "id": first["id"], "correction": "In Swabia" }).to_string();
    let id = engine.feedback(&body).expect("the answer waits");
    let told = finish(&mut engine, id).1["result"].take();
    assert_eq!((&told["id"], &told["learned"]), (&first["id"], &json!(true)));
    let corrected = ask(&mut engine, "Where is Ulm?");
    assert_eq!(said(&corrected), "In Swabia");
    assert_ne!(said(&first), "In Swabia");

    let (bytes, calibration) = (engine.export_learned().expect("it learns"), engine.calibration().expect("it learns"));
    let file = fs::read(Golden::load("llama-a").model("f32")).expect("a golden file can be read");
    let mut n_read = 0;
    let mut count = |progress: crate::WebProgress| n_read += u32::from(progress.phase == "calibrate");
    let mut other = WebEngine::load(source(file), &options(true), Some(&calibration), &mut count).expect("it loads");
    assert_eq!(n_read, 0, "nothing is read again where the calibration is known");
    let status = other.import_learned(&bytes).expect("the same model");
    assert_eq!(
        (&status["corrections"], &status["digest"]),
        (&json!(1), &engine.learning().expect("it learns")["digest"])
    );
    assert_eq!(said(&ask(&mut other, "Where is Ulm?")), "In Swabia");
    other.forget().expect("it learns");
    assert_eq!(said(&ask(&mut other, "Where is Ulm?")), said(&first));
}

#[test]
fn what_cannot_be_learned_is_refused() {
    let mut engine = load("llama-a", &options(true));
    assert_eq!(line(engine.feedback(r#"{ "id": "x" }"#)), "say 'score', 'correction' or both");
    assert_eq!(
        line(engine.feedback(r#"{ "id": "x", "score": 1 }"#)),
        "no answer 'x' waits to be judged; the last 0 do"
    );
    assert_eq!(
        line(engine.remember(r#"{ "question": "a", "answer": " " }"#)),
        "'answer' is empty; say what is to be remembered"
    );
    assert_eq!(line(engine.import_learned(b"no")), "these bytes are no snapshot of what was learned; export it again");
    let id = engine.remember(r#"{ "question": "Where is Ulm?", "answer": "In Swabia" }"#).expect("it is sound");
    assert_eq!(finish(&mut engine, id).1["result"]["corrections"], 1);
}
