//! A folder of several adapters and the [`Gate`] that weighs them: `xlora.json` names both.
//!
//! ```json
//! {"gate": "gate.safetensors", "adapters": ["poet", {"path": "facts.gguf", "scale": 0.5}]}
//! ```

use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::apply::SET_MAX;
use crate::error::{LoraError, LoraErrorKind, invalid, shown};
use crate::gate::Gate;

/// The file that makes a folder a mixture.
pub const CONFIG: &str = "xlora.json";

/// The longest such file that is read, in bytes.
const CONFIG_BYTES_MAX: u64 = 64 << 10;

/// Adapters of a folder with the gate that weighs them.
#[derive(Debug)]
pub struct Mixture {
    /// Gate that weighs the adapters.
    pub gate: Gate,
    /// Where they are, and how strong each is beside that.
    pub adapters: Vec<(PathBuf, f32)>,
}

/// Returns whether a folder is a mixture.
pub fn is_mixture(folder: &Path) -> bool {
    folder.join(CONFIG).is_file()
}

impl Mixture {
    /// Reads what a folder names, without the adapters themselves.
    ///
    /// # Errors
    /// A file is missing, too large or damaged, names what is outside of the folder, or the gate weighs another number of
    /// adapters.
    pub fn read(folder: &Path) -> Result<Mixture, LoraError> {
        let path = folder.join(CONFIG);
        let (gate, adapters) = read_config(&path).map_err(|error| error.within(path.display()))?;
        let gate = Gate::read(&folder.join(gate))?;
        let (n, n_weighed) = (adapters.len(), gate.shape().n_adapters);
        if n != n_weighed {
            return Err(invalid(format!("{}: {n} adapters, the gate weighs {n_weighed}", path.display())));
        }
        let adapters = adapters.into_iter().map(|(path, scale)| (folder.join(path), scale)).collect();
        Ok(Mixture { gate, adapters })
    }
}

fn read_config(path: &Path) -> Result<(PathBuf, Vec<(PathBuf, f32)>), LoraError> {
    let io = |error: std::io::Error| LoraError::new(LoraErrorKind::Io, error.to_string()).with_source(error);
    let mut text = String::new();
    File::open(path).map_err(io)?.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text).map_err(io)?;
    if text.len() as u64 > CONFIG_BYTES_MAX {
        return Err(LoraError::new(LoraErrorKind::Limit, format!("more than {CONFIG_BYTES_MAX} bytes of settings")));
    }
    let config: Value = serde_json::from_str(&text).map_err(|error| invalid(format!("no JSON: {error}")))?;
    let gate = config["gate"].as_str().ok_or_else(|| invalid("'gate' names no file"))?;
    let adapters = config["adapters"].as_array().filter(|all| (1..=SET_MAX).contains(&all.len()));
    let adapters = adapters.ok_or_else(|| invalid(format!("'adapters' is no list of 1 to {SET_MAX}")))?;
    let one = |adapter: &Value| {
        let path = adapter.as_str().or_else(|| adapter["path"].as_str());
        let path = path.ok_or_else(|| invalid("an adapter has no 'path'"))?;
        let scale = match &adapter["scale"] {
            Value::Null => 1.0,
            scale => scale.as_f64().ok_or_else(|| invalid("a 'scale' is no number"))? as f32,
        };
        Ok((within(path)?, scale))
    };
    Ok((within(gate)?, adapters.iter().map(one).collect::<Result<_, LoraError>>()?))
}

/// Returns a path that stays within the folder.
fn within(path: &str) -> Result<PathBuf, LoraError> {
    let plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    match plain && !path.is_empty() {
        true => Ok(PathBuf::from(path)),
        false => Err(invalid(format!("'{}' leads out of the folder", shown(path)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::GateShape;

    #[test]
    fn a_folder_names_a_gate_and_what_it_weighs() {
        let folder = tempfile::tempdir().expect("a folder");
        let sizes = GateShape { n_embd: 8, n_hidden: 4, n_adapters: 2, window: 16, temperature: 1.0 };
        let gate = Gate::seeded(sizes, 7).expect("a gate");
        gate.write(&folder.path().join("g.safetensors")).expect("it can be written");
        let read = |text: &str| {
            std::fs::write(folder.path().join(CONFIG), text).expect("a file");
            Mixture::read(folder.path())
        };
        assert!(!is_mixture(folder.path()));
        let config = r#"{"gate": "g.safetensors", "adapters": ["a", {"path": "b/c.gguf", "scale": 0.5}]}"#;
        let mixture = read(config).expect("it is sound");
        assert!(is_mixture(folder.path()) && mixture.gate == gate);
        assert_eq!(mixture.adapters, [(folder.path().join("a"), 1.0), (folder.path().join("b/c.gguf"), 0.5)]);
        for wrong in [
            "",
            "[]",
            r#"{"gate": "g.safetensors"}"#,
            r#"{"gate": "g.safetensors", "adapters": []}"#,
            r#"{"gate": "g.safetensors", "adapters": ["a"]}"#,
            r#"{"gate": "g.safetensors", "adapters": ["a", {"scale": 1}]}"#,
            r#"{"gate": "g.safetensors", "adapters": ["a", {"path": "b", "scale": "x"}]}"#,
            r#"{"gate": "../g.safetensors", "adapters": ["a", "b"]}"#,
            r#"{"gate": "g.safetensors", "adapters": ["a", "/etc/passwd"]}"#,
            r#"{"gate": "nowhere", "adapters": ["a", "b"]}"#,
            &format!("{{\"x\": \"{}\"}}", "y".repeat(80 << 10)),
        ] {
            let line = read(wrong).expect_err("it is refused").to_string();
            assert!(!line.contains('\n') && line.len() < 300, "{line}");
        }
    }
}
