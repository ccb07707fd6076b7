//! Folders that are refused by their descriptions, before their weights are there.

use ruvllm_convert::{ConvertErrorKind, ConvertType, check_folder};
use serde_json::{Value, json};

use crate::folder::Folder;

/// Returns the error of a folder without weights, which is that of its conversion.
fn refused(folder: &Folder) -> String {
    folder.write_descriptions();
    let line = check_folder(folder.path(), None).expect_err("refused").to_string();
    assert!(!line.contains('\n') && line.len() < 1000, "{line}");
    folder.write();
    assert_eq!(folder.error(), line);
    line
}

#[test]
fn folders_are_refused_before_their_weights_are_there() {
    let check = |key: &str, value: Value, part: &str| {
        let mut folder = Folder::llama();
        folder.config[key] = value;
        let line = refused(&folder);
        assert!(line.contains(part), "{line}");
    };
    check("architectures", json!(["T5Model"]), "models of class 'T5Model' are not converted; those of bert,");
    check(
        "quantization_config",
        json!({ "quant_method": "gptq" }),
        "quantised by gptq, which is not read; use one in F16",
    );
    check(
        "quantization_config",
        json!({ "quant_method": "compressed-tensors", "format": "pack-quantized" }),
        "quantised by compressed-tensors (pack-quantized), which is not read",
    );
    check("scoring_func", json!("dice"), "experts are chosen by 'dice', which is not converted");
    check("num_attention_heads", Value::Null, "'num_attention_heads' or 'n_head' or 'n_heads' is missing");
    check("vocab_size", json!(3), "the tokenizer has 6 tokens, config.json says 3");
    check("architectures", json!(["BertModel"]), "a tokenizer of type 'BPE' is not converted");
}

#[test]
fn types_are_refused_before_there_is_a_folder() {
    let ty = ConvertType::parse("IQ2_XS").expect("a type");
    let error = ty.check().expect_err("refused");
    assert!(error.to_string().starts_with("IQ2_XS needs an importance matrix: convert to F16, then"), "{error}");
    let folder = Folder::llama();
    folder.write();
    let errors = [check_folder(folder.path(), Some(ty)), folder.convert("IQ2_XS").map(drop)];
    for again in errors.map(|result| result.expect_err("refused")) {
        assert_eq!((again.kind(), again.to_string()), (ConvertErrorKind::Usage, error.to_string()));
    }
    for name in ["F32", "F16", "Q4_K_M"] {
        assert!(ConvertType::parse(name).expect("a type").check().is_ok(), "{name}");
    }
}

#[test]
fn folders_that_may_be_converted_pass_without_weights() {
    let folder = Folder::llama();
    folder.write_descriptions();
    for ty in [None, Some(ConvertType::F32), ConvertType::parse("Q4_K_M").ok()] {
        check_folder(folder.path(), ty).expect("its descriptions are sound");
    }
    // How texts are cut may be told to the conversion.
    let split = r#"{"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"pre_tokenizer":{"type":"Split","pattern":{"Regex":"x"}}}"#;
    folder.put("tokenizer.json", split);
    folder.put("tokenizer_config.json", "{}");
    check_folder(folder.path(), None).expect("it is asked later");
}
