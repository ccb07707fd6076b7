//! Tokenizers of the golden models and of the real ones against llama.cpp's ids.

use ruvllm_gguf::GgufFile;
use ruvllm_testkit::{Golden, real_model, testdata_dir, tokenizer_cases};
use ruvllm_text::tokenizer::{DecodeOptions, EncodeOptions, Tokenizer};
use serde_json::Value;

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn is(value: &Value) -> bool {
    value.as_bool().expect("a truth value")
}

#[test]
fn golden_vocabularies_are_exact() {
    let goldens = Golden::all();
    let mut n = 0;
    for golden in &goldens {
        let path = match golden.dtypes().is_empty() {
            true => testdata_dir().join("models").join(&golden.name).join("model.gguf"),
            false => golden.model("f32"),
        };
        let file = GgufFile::open(&path).expect("it opens");
        let tokenizer = Tokenizer::from_metadata(file.metadata()).expect("it has a tokenizer");
        for case in golden.case["tokenizer_check"].as_array().expect("cases") {
            let options =
                EncodeOptions { add_special: is(&case["add_special"]), parse_special: is(&case["parse_special"]) };
            let text = case["text"].as_str().expect("a text");
            assert_eq!(
                tokenizer.encode(text, options).expect("it encodes"),
                ids(&case["ids"]),
                "{}: {text:?}",
                golden.name
            );
            n += 1;
        }
    }
    assert_eq!(n, 12 * goldens.len());
}

fn check_real(name: &str) {
    let file = GgufFile::open(&real_model(name)).expect("it opens");
    let tokenizer = Tokenizer::from_metadata(file.metadata()).expect("it has a tokenizer");
    let cases = tokenizer_cases(name);
    assert_eq!(cases.len(), 111);
    for case in cases {
        let (text, parse_special) = (case["text"].as_str().expect("a text"), is(&case["parse_special"]));
        let plain = ids(&case["ids_plain"]);
        for (add_special, expected) in [(false, &plain), (true, &ids(&case["ids_with_special"]))] {
            let ids = tokenizer.encode(text, EncodeOptions { add_special, parse_special }).expect("it encodes");
            assert_eq!(ids, *expected, "{name}: {text:?}, add_special {add_special}, parse_special {parse_special}");
        }
        let decoded = tokenizer.decode(&plain, DecodeOptions { render_special: true });
        assert_eq!(decoded, case["detok_plain"].as_str().expect("a text"), "{name}");
        let mut stream = tokenizer.stream().render_special(true);
        let mut streamed: String = plain.iter().filter_map(|&id| stream.push(id)).collect();
        streamed.extend(stream.finish());
        assert_eq!(streamed, decoded, "{name}");
    }
}

#[test]
fn smollm2_is_exact() {
    check_real("smollm2:135m");
}

#[test]
fn gemma3_is_exact() {
    check_real("gemma3:270m");
}

#[test]
fn qwen_is_exact() {
    check_real("qwen2.5-coder:0.5b");
}
