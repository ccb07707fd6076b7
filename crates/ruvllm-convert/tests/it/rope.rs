//! Settings of RoPE where transformers 4 writes them and where transformers 5 does make the same file.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Map, Value, json};

use crate::equal::{Fixture, lines, names};

/// Settings that transformers 5 writes only in `rope_parameters`, and what they are called there.
const MOVED: [(&str, &str); 5] = [
    ("rope_theta", "rope_theta"),
    ("rotary_emb_base", "rope_theta"),
    ("rotary_pct", "partial_rotary_factor"),
    ("partial_rotary_factor", "partial_rotary_factor"),
    ("original_max_position_embeddings", "original_max_position_embeddings"),
];
const BASE: f32 = 250_000.0;

/// Reads the settings of a model.
fn settings(model: &Fixture) -> Map<String, Value> {
    let text = fs::read_to_string(model.folder.join("config.json")).expect("the settings");
    // Python's word is no JSON.
    serde_json::from_str(&text.replace("Infinity", "null")).expect("JSON")
}

/// Gives settings values that nobody assumes.
fn unusual(config: &mut Map<String, Value>) {
    for key in ["rope_theta", "rotary_emb_base"] {
        config.entry(key).and_modify(|base| *base = json!(BASE));
    }
    for key in ["rotary_pct", "partial_rotary_factor"] {
        // A share of all stays, as there may be factors for each dimension.
        config.entry(key).and_modify(|share| *share = json!((share.as_f64().expect("a share") * 2.0).min(1.0)));
    }
    config.entry("rope_local_base_freq").and_modify(|base| *base = json!(20000.0));
}

/// Returns the settings as transformers 5 writes them.
fn of_transformers_5(config: &Map<String, Value>) -> Map<String, Value> {
    let mut config = config.clone();
    let scaling = config.remove("rope_scaling").unwrap_or_default();
    let mut rope = scaling.as_object().cloned().unwrap_or_default();
    let kind = rope.remove("type").or_else(|| rope.remove("rope_type")).unwrap_or(json!("default"));
    rope.insert("rope_type".to_owned(), kind);
    for (outside, inside) in MOVED {
        rope.extend(config.remove(outside).map(|value| (inside.to_owned(), value)));
    }
    let rope = match config.remove("rope_local_base_freq") {
        Some(base) => json!({
            "full_attention": rope, "sliding_attention": { "rope_theta": base, "rope_type": "default" },
        }),
        None => Value::Object(rope),
    };
    config.insert("rope_parameters".to_owned(), rope);
    config
}

/// Converts a model with other settings, and returns the lines of its file.
fn converted(model: &Fixture, config: &Map<String, Value>) -> BTreeSet<String> {
    let text = Value::Object(config.clone()).to_string();
    fs::write(model.folder.join("config.json"), text).expect("it is writable");
    lines(&model.convert().unwrap_or_else(|error| panic!("{}: {error}", model.folder.display())))
}

#[test]
fn both_forms_make_the_same_file() {
    let mut n_checked = 0;
    for name in names() {
        let model = Fixture::new(&name);
        let mut config = settings(&model);
        if !config.contains_key("rope_theta") {
            continue;
        }
        unusual(&mut config);
        let old = converted(&model, &config);
        let base = format!(".rope.freq_base f32 {:08x}", BASE.to_bits());
        assert!(old.iter().any(|line| line.ends_with(&base)), "{name} has another base");
        let new = converted(&model, &of_transformers_5(&config));
        let different: Vec<&String> = old.symmetric_difference(&new).collect();
        assert!(different.is_empty(), "{name}: {different:?}");
        n_checked += 1;
    }
    assert!(n_checked >= 26, "{n_checked}");
}

#[test]
fn older_names_of_the_share_count() {
    for (name, share) in [("gptneox", "rotary_pct"), ("stablelm", "rope_pct")] {
        let model = Fixture::new(name);
        let mut config = settings(&model);
        MOVED.iter().for_each(|(outside, _)| drop(config.remove(*outside)));
        let n_rotated = |config: &Map<String, Value>| {
            let start = format!("K {name}.rope.dimension_count u32 ");
            let lines = converted(&model, config);
            lines.iter().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
        };
        assert_eq!(n_rotated(&config).as_deref(), Some("2"), "{name}: a quarter of 8");
        config.insert(share.to_owned(), json!(0.5));
        assert_eq!(n_rotated(&config).as_deref(), Some("4"), "{name}");
    }
}

#[test]
fn scaling_is_kept_or_refused() {
    let yarn = json!({
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0,
    });
    let factor = format!("f32 {:08x}", 4.0f32.to_bits());
    for name in ["gemma", "gemma2", "gptneox", "phi2", "stablelm", "starcoder2"] {
        let model = Fixture::new(name);
        let mut config = settings(&model);
        let mut with = |scaling: Value| {
            config.insert("rope_scaling".to_owned(), scaling);
            let old = converted(&model, &config);
            assert_eq!(old, converted(&model, &of_transformers_5(&config)), "{name}");
            let start = format!("K {name}.rope.scaling.");
            old.iter().filter_map(|line| line.strip_prefix(&start)).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(
            with(json!({ "type": "linear", "factor": 4.0 })),
            [format!("factor {factor}"), "type string linear".into()]
        );
        assert_eq!(
            with(yarn.clone()),
            [
                format!("factor {factor}"),
                "original_context_length u32 64".into(),
                "type string yarn".into(),
                format!("yarn_beta_fast f32 {:08x}", 16.0f32.to_bits()),
            ],
            "{name}"
        );
        assert_eq!(
            with(json!({ "type": "dynamic", "factor": 4.0 })),
            [""; 0],
            "{name} is scaled past its context alone"
        );
        assert_eq!(with(Value::Null), [""; 0], "{name}");
    }
    let model = Fixture::new("gemma");
    let mut config = settings(&model);
    config.insert("rope_scaling".to_owned(), json!({ "rope_type": "llama3", "factor": 8.0 }));
    fs::write(model.folder.join("config.json"), Value::Object(config).to_string()).expect("it is writable");
    let line = model.convert().expect_err("it has factors of its own").to_string();
    assert!(
        line.ends_with("config.json: RoPE is scaled by 'llama3', which is not converted for this architecture"),
        "{line}"
    );
}
