//! Room for a file and for the one between is asked for before either is written.

use std::fs::File;
use std::io::Write;
use std::ops::ControlFlow;

use ruvllm_convert::{ConvertError, ConvertErrorKind, ConvertOptions, ConvertType, available_space, convert};
use serde_json::json;

use crate::folder::{self, Folder};

/// Width of rows.
const N_EMBD: usize = 8192;

/// Writes a Llama whose feed-forward parts have about `n_bytes` in F16; its weights are a hole in the file.
fn write(folder: &Folder, n_bytes: u64) {
    // Three matrices of two bytes a value; wider ones than these are those of no model.
    let n_layers = 1 + (n_bytes >> 38) as usize;
    let n_ff = n_bytes as usize / (n_layers * 3 * 2 * N_EMBD);
    let mut config = folder.config.clone();
    config["hidden_size"] = json!(N_EMBD);
    config["intermediate_size"] = json!(n_ff);
    config["num_hidden_layers"] = json!(n_layers);
    folder.write_descriptions();
    folder.put("config.json", config.to_string());
    let wide = |n: &usize| match *n {
        folder::N_EMBD => N_EMBD,
        folder::N_FF => n_ff,
        // Keys and values have half of the heads.
        4 => N_EMBD / 2,
        n => n,
    };
    let (mut at, mut directory) = (0, serde_json::Map::new());
    for (name, tensor) in &folder.tensors {
        for layer in 0..if name.contains(".0.") { n_layers } else { 1 } {
            let shape: Vec<usize> = tensor.shape.iter().map(wide).collect();
            let end = at + 2 * shape.iter().product::<usize>();
            let info = json!({ "dtype": "F16", "shape": shape, "data_offsets": [at, end] });
            directory.insert(name.replace(".0.", &format!(".{layer}.")), info);
            at = end;
        }
    }
    let directory = serde_json::Value::Object(directory).to_string();
    let mut file = File::create(folder.path().join("model.safetensors")).expect("it is writable");
    file.write_all(&(directory.len() as u64).to_le_bytes()).expect("it is writable");
    file.write_all(directory.as_bytes()).expect("it is writable");
    file.set_len((8 + directory.len() + at) as u64).expect("files may have holes");
}

/// Returns the error of a conversion to a type that is broken off when it begins to write.
fn error_of(folder: &Folder, ty: &str) -> ConvertError {
    let options = ConvertOptions { ty: Some(ConvertType::parse(ty).expect("a type")), ..ConvertOptions::default() };
    let converted = convert(folder.path(), &folder.output(), &options, &mut |_| ControlFlow::Break(()));
    let error = converted.expect_err("there is no room, or it is broken off");
    let mut left = std::fs::read_dir(folder.path()).expect("the folder").filter_map(Result::ok);
    assert!(left.all(|entry| !entry.file_name().to_string_lossy().contains("out.gguf")), "{error}");
    error
}

#[test]
fn a_disk_without_room_for_both_files_is_seen_first() {
    let folder = Folder::llama();
    let Some(have) = available_space(folder.path()) else { return };
    // The file between takes 0.8 of what is left, and that of 8.5 bits a value 0.43 more.
    write(&folder, have / 10 * 8);
    let error = error_of(&folder, "Q8_0");
    assert!(error.kind() == ConvertErrorKind::Space && error.to_string().contains("the disk has"), "{error}");
    assert_eq!(error_of(&folder, "F16").kind(), ConvertErrorKind::Cancelled);
    write(&folder, have / 10 * 5);
    assert_eq!(error_of(&folder, "Q8_0").kind(), ConvertErrorKind::Cancelled);
}
