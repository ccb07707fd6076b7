//! `config.json`: numbers by any of their names, what frameworks assume where it is silent, and the settings of RoPE, which stand in
//! one of several places.

use serde_json::{Map, Value, json};

use super::folder::Folder;
use crate::error::{ConvertError, shown};

/// The most of anything that a configuration counts.
const COUNT_MAX: u64 = 1 << 31;
/// The widest head. Models in use have up to 576.
const HEAD_DIM_MAX: usize = 1 << 16;

/// The settings of a model.
#[derive(Clone, Debug)]
pub(super) struct Config {
    fields: Map<String, Value>,
    /// The settings of RoPE, whatever they are called.
    rope: Map<String, Value>,
    architecture: String,
}

impl Config {
    /// Reads the settings in a folder. Settings of the text part of a model of several parts come before those of the whole.
    ///
    /// # Errors
    /// There are none, or they do not name an architecture.
    pub(super) fn read(folder: &Folder) -> Result<Config, ConvertError> {
        let path = folder.path().join("config.json");
        let value = folder.json("config.json")?;
        let value =
            value.ok_or_else(|| ConvertError::invalid("has no config.json; is it a model?").at(folder.path()))?;
        Config::of(value).map_err(|error| error.at(&path))
    }

    fn of(value: Value) -> Result<Config, ConvertError> {
        let Value::Object(mut fields) = value else { return Err(ConvertError::invalid("is no JSON object")) };
        let first = |value: &Value| value["architectures"][0].as_str().map(str::to_owned);
        let mut architecture = first(&Value::Object(fields.clone()));
        for part in ["text_config", "llm_config", "language_config"] {
            let Some(Value::Object(own)) = fields.get(part).cloned() else { continue };
            architecture = first(&Value::Object(own.clone())).or(architecture);
            fields.extend(own);
            break;
        }
        if architecture.is_none() && fields.contains_key("ssm_cfg") {
            let layer = fields["ssm_cfg"]["layer"].as_str().unwrap_or("Mamba").to_owned();
            architecture = Some(layer + "ForCausalLM");
        }
        let architecture = architecture.ok_or_else(|| ConvertError::invalid("names no architecture"))?;
        let mut config = Config { fields, rope: Map::new(), architecture };
        config.rope = config.find_rope();
        Ok(config)
    }

    /// Returns the architecture, as frameworks name its class.
    pub(super) fn architecture(&self) -> &str {
        &self.architecture
    }

    /// Fills in what frameworks assume of settings that are absent.
    pub(super) fn assume(&mut self, defaults: &[(&str, Assumed)]) {
        for (key, assumed) in defaults {
            if self.get(&[key]).is_some() {
                continue;
            }
            let value = match *assumed {
                Assumed::Count(n) => Some(json!(n)),
                Assumed::Float(x) => Some(json!(x)),
                Assumed::Flag(flag) => Some(json!(flag)),
                Assumed::As(other) => self.get(&[other]).cloned(),
                Assumed::Ratio(a, b) => match (self.number(a), self.number(b)) {
                    (Some(a), Some(b)) if b >= 1.0 => Some(json!((a / b) as u64)),
                    _ => None,
                },
            };
            self.fields.extend(value.map(|value| ((*key).to_owned(), value)));
        }
        self.rope = self.find_rope();
    }

    /// Returns the first of several settings that is there.
    pub(super) fn get(&self, keys: &[&str]) -> Option<&Value> {
        keys.iter().find_map(|key| self.fields.get(*key).filter(|value| !value.is_null()))
    }

    /// Returns all settings.
    pub(super) fn value(&self) -> Value {
        Value::Object(self.fields.clone())
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.get(&[key])?.as_f64()
    }

    /// Returns a count, if it is there.
    ///
    /// # Errors
    /// It is no count.
    pub(super) fn count_if_any(&self, keys: &[&str]) -> Result<Option<usize>, ConvertError> {
        let Some(value) = self.get(keys) else { return Ok(None) };
        count(value).map(Some).ok_or_else(|| wrong(keys, value))
    }

    /// Returns a count.
    ///
    /// # Errors
    /// It is absent, or none.
    pub(super) fn count(&self, keys: &[&str]) -> Result<usize, ConvertError> {
        self.count_if_any(keys)?.ok_or_else(|| absent(keys))
    }

    /// Returns a count that is not 0.
    ///
    /// # Errors
    /// It is absent, none, or 0.
    pub(super) fn positive(&self, keys: &[&str]) -> Result<usize, ConvertError> {
        match self.count(keys)? {
            0 => Err(wrong(keys, &json!(0))),
            n => Ok(n),
        }
    }

    /// Returns a number, if it is there.
    ///
    /// # Errors
    /// It is none.
    pub(super) fn float_if_any(&self, keys: &[&str]) -> Result<Option<f64>, ConvertError> {
        let Some(value) = self.get(keys) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| wrong(keys, value))
    }

    /// Returns a number.
    ///
    /// # Errors
    /// It is absent, or none.
    pub(super) fn float(&self, keys: &[&str]) -> Result<f64, ConvertError> {
        self.float_if_any(keys)?.ok_or_else(|| absent(keys))
    }

    /// Returns whether a setting is true.
    pub(super) fn is(&self, key: &str) -> bool {
        self.get(&[key]).and_then(Value::as_bool).unwrap_or(false)
    }

    /// Returns numbers.
    ///
    /// # Errors
    /// They are absent, or none.
    pub(super) fn floats(&self, key: &str) -> Result<Vec<f64>, ConvertError> {
        let value = self.get(&[key]).ok_or_else(|| absent(&[key]))?;
        let numbers: Option<Vec<f64>> = value.as_array().and_then(|all| all.iter().map(Value::as_f64).collect());
        numbers.ok_or_else(|| wrong(&[key], value))
    }

    /// Returns the number of layers.
    ///
    /// # Errors
    /// It is absent, or beyond any model.
    pub(super) fn n_layers(&self) -> Result<usize, ConvertError> {
        let keys = &["n_layers", "num_hidden_layers", "n_layer", "num_layers"];
        match self.positive(keys)? {
            n if n <= 4096 => Ok(n),
            n => Err(wrong(keys, &json!(n))),
        }
    }

    /// Returns the number of attention heads.
    ///
    /// # Errors
    /// It is absent.
    pub(super) fn n_heads(&self) -> Result<usize, ConvertError> {
        self.positive(&["num_attention_heads", "n_head", "n_heads"])
    }

    /// Returns the number of heads of keys.
    ///
    /// # Errors
    /// It is no count.
    pub(super) fn n_kv_heads(&self) -> Result<usize, ConvertError> {
        match self.count_if_any(&["num_key_value_heads", "n_kv_heads"])? {
            Some(n) if n > 0 => Ok(n),
            _ => self.n_heads(),
        }
    }

    /// Returns the width of rows between layers.
    ///
    /// # Errors
    /// It is absent.
    pub(super) fn n_embd(&self) -> Result<usize, ConvertError> {
        self.positive(&["hidden_size", "n_embd", "d_model", "dim"])
    }

    /// Returns the width of a head: its own, else a share of rows.
    ///
    /// # Errors
    /// A setting that makes it up is absent, or it is beyond any model.
    pub(super) fn head_dim(&self) -> Result<usize, ConvertError> {
        let n = match self.count_if_any(&["head_dim"])? {
            Some(n) if n > 0 => n,
            _ => self.n_embd()? / self.n_heads()?,
        };
        match n {
            n if n <= HEAD_DIM_MAX => Ok(n),
            n => Err(ConvertError::invalid(format!("config.json: heads have a width of {n}, which cannot be"))),
        }
    }

    /// Returns the settings of RoPE for layers that see everything.
    pub(super) fn rope(&self) -> &Map<String, Value> {
        match self.rope.get("full_attention") {
            Some(Value::Object(own)) => own,
            _ => &self.rope,
        }
    }

    /// Returns a number among the settings of RoPE. Frameworks write it outside of them or, since transformers 5, only in them.
    ///
    /// # Errors
    /// It is absent, or none.
    pub(super) fn rope_number(&self, key: &str) -> Result<f64, ConvertError> {
        let value = self.rope().get(key).ok_or_else(|| absent(&[key]))?;
        value.as_f64().ok_or_else(|| wrong(&[key], value))
    }

    /// Returns a count that is not 0 among the settings of RoPE.
    ///
    /// # Errors
    /// It is absent, none, or 0.
    pub(super) fn rope_count(&self, key: &str) -> Result<usize, ConvertError> {
        let value = self.rope().get(key).ok_or_else(|| absent(&[key]))?;
        count(value).filter(|&n| n > 0).ok_or_else(|| wrong(&[key], value))
    }

    /// Returns the base of RoPE in layers with a window, where it has one of its own.
    pub(super) fn rope_base_of_windows(&self) -> Option<f64> {
        self.rope.get("sliding_attention")?["rope_theta"].as_f64()
    }

    /// Finds the settings of RoPE: newer files have an object of all, older ones an object of scaling and the rest outside.
    fn find_rope(&self) -> Map<String, Value> {
        let own = self.get(&["rope_parameters", "rope_scaling"]).and_then(Value::as_object);
        let mut rope = own.cloned().unwrap_or_default();
        if rope.contains_key("full_attention") || rope.contains_key("sliding_attention") {
            return rope;
        }
        let local =
            ["local_rope_theta", "rope_local_theta", "rope_theta_local", "swa_rope_theta", "rope_local_base_freq"];
        if let Some(base) = self.get(&local) {
            rope.insert("sliding_attention".to_owned(), json!({ "rope_theta": base }));
        }
        const OUTSIDE: [(&str, &[&str]); 3] = [
            (
                "rope_theta",
                &["global_rope_theta", "rope_global_theta", "rope_theta_global", "rope_theta", "rotary_emb_base"],
            ),
            ("partial_rotary_factor", &["rotary_pct", "partial_rotary_factor", "rope_pct", "rope_percent"]),
            ("original_max_position_embeddings", &["original_max_position_embeddings"]),
        ];
        for (key, outside) in OUTSIDE {
            if let Some(value) = self.get(outside).filter(|_| !rope.contains_key(key)) {
                rope.insert(key.to_owned(), value.clone());
            }
        }
        if let Some(kind) = rope.get("type").filter(|_| !rope.contains_key("rope_type")).cloned() {
            rope.insert("rope_type".to_owned(), kind);
        }
        rope
    }
}

/// Value of a setting that frameworks assume where it is absent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Assumed {
    /// A count.
    Count(u64),
    /// A number.
    Float(f64),
    /// A flag.
    Flag(bool),
    /// The value of another setting.
    As(&'static str),
    /// A setting divided by another.
    Ratio(&'static str, &'static str),
}

fn count(value: &Value) -> Option<usize> {
    // Some configurations write counts as 1.0.
    let whole = value.as_u64().or_else(|| value.as_f64().filter(|x| x.fract() == 0.0 && *x >= 0.0).map(|x| x as u64));
    whole.filter(|&n| n <= COUNT_MAX).map(|n| n as usize)
}

/// Returns the error of a setting that is absent.
pub(super) fn absent(keys: &[&str]) -> ConvertError {
    ConvertError::invalid(format!("config.json: '{}' is missing", keys.join("' or '")))
}

fn wrong(keys: &[&str], value: &Value) -> ConvertError {
    let line = format!("config.json: '{}' is {}, which cannot be", keys.join("' or '"), shown(&value.to_string()));
    ConvertError::invalid(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rope_is_found_wherever_it_stands() {
        let check = |value: Value, base: Option<f64>, windows: Option<f64>, kind: Option<&str>| {
            let config = Config::of(value).expect("settings");
            let rope = config.rope();
            assert_eq!(rope.get("rope_theta").and_then(Value::as_f64), base);
            assert_eq!(config.rope_base_of_windows(), windows);
            assert_eq!(rope.get("rope_type").and_then(Value::as_str), kind);
        };
        let of = |rest: Value| {
            let mut value = json!({ "architectures": ["A"] });
            value.as_object_mut().expect("an object").extend(rest.as_object().expect("an object").clone());
            value
        };
        check(of(json!({ "rope_theta": 5.0, "rope_scaling": { "type": "yarn" } })), Some(5.0), None, Some("yarn"));
        check(of(json!({ "rope_theta": 5.0, "rope_local_base_freq": 7.0 })), Some(5.0), Some(7.0), None);
        let both = json!({ "rope_parameters": {
            "full_attention": { "rope_theta": 1.0, "rope_type": "default" }, "sliding_attention": { "rope_theta": 2.0 } } });
        check(of(both), Some(1.0), Some(2.0), Some("default"));
        check(of(json!({ "text_config": { "rope_theta": 3.0 } })), Some(3.0), None, None);
    }

    #[test]
    fn counts_are_bounded() {
        let config =
            |n: Value| Config::of(json!({ "architectures": ["A"], "num_hidden_layers": n })).expect("settings");
        assert_eq!(config(json!(3.0)).n_layers().expect("a count"), 3);
        for n in [json!(0), json!(-1), json!(1e300), json!(1u64 << 60), json!("x"), json!(5000)] {
            let line = config(n).n_layers().expect_err("none").to_string();
            assert!(line.starts_with("config.json: 'n_layers' or"), "{line}");
        }
    }
}
