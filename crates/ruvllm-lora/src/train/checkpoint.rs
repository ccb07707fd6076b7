//! Where a training stands, in one file: factors, both means of the optimiser, the losses so far, and the step, from which everything
//! else follows (the order of examples is a function of seed and step).

use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use super::optimizer::Adam;
use crate::error::{LoraError, LoraErrorKind, invalid, shown};

/// What a file of this kind says of itself.
const FORMAT: &str = "ruvllm training 1";
/// The longest file that is read, in bytes.
const BYTES_MAX: u64 = 16 << 30;

/// Everything that a training needs to go on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Checkpoint {
    /// Options that decide the course of the training; they must be the same to go on.
    pub options: Value,
    /// Of each pair of factors.
    pub names: Vec<String>,
    /// `A` and `B` of each pair.
    pub values: Vec<Vec<f32>>,
    pub adam: Adam,
    /// The loss of every step.
    pub losses: Vec<f32>,
    /// Seconds spent.
    pub seconds: f64,
}

impl Checkpoint {
    /// Writes the file; it appears when it is complete.
    pub(super) fn write(&self, path: &Path) -> Result<(), LoraError> {
        let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let mut tensors: Vec<(String, Vec<u8>)> = vec![("losses".to_owned(), bytes(&self.losses))];
        for (kind, all) in [("value", &self.values), ("mean", &self.adam.m), ("square", &self.adam.v)] {
            for (i, values) in all.iter().enumerate() {
                let part = ["a", "b"][i % 2];
                tensors.push((format!("{}.{part}.{kind}", self.names[i / 2]), bytes(values)));
            }
        }
        let views = tensors.iter().map(|(name, bytes)| {
            let view = TensorView::new(Dtype::F32, vec![bytes.len() / 4], bytes);
            (name.as_str(), view.expect("the shape has as many values"))
        });
        let state = json!({
            "format": FORMAT, "step": self.adam.n_steps, "seconds": self.seconds, "options": self.options,
            "names": self.names,
        });
        // One key, so that the file's bytes have one order.
        let about = HashMap::from([("state".to_owned(), state.to_string())]);
        let bytes = safetensors::serialize(views, Some(about))
            .map_err(|error| invalid(format!("cannot be written: {error}")).with_source(error))?;
        crate::format::replace(path, &bytes)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It is missing, damaged, or holds what is no number.
    pub(super) fn read(path: &Path) -> Result<Checkpoint, LoraError> {
        Checkpoint::read_file(path).map_err(|error| error.within(path.display()))
    }

    fn read_file(path: &Path) -> Result<Checkpoint, LoraError> {
        let io = |error: std::io::Error| LoraError::new(LoraErrorKind::Io, error.to_string()).with_source(error);
        let n_bytes = std::fs::metadata(path).map_err(io)?.len();
        if n_bytes > BYTES_MAX {
            return Err(LoraError::new(LoraErrorKind::Limit, format!("{n_bytes} bytes, at most {BYTES_MAX} are read")));
        }
        let bytes = std::fs::read(path).map_err(io)?;
        let unsound = |error: safetensors::SafeTensorError| {
            invalid(format!("no sound checkpoint: {error}; start without --resume")).with_source(error)
        };
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(unsound)?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(unsound)?;
        let state = header.metadata().as_ref().and_then(|about| about.get("state"));
        let state: Option<Value> = state.and_then(|text| serde_json::from_str(text).ok());
        let state = state.filter(|state| state["format"] == FORMAT);
        let state = state.ok_or_else(|| invalid("no checkpoint of a training; start without --resume"))?;
        let values = |name: &str| -> Result<Vec<f32>, LoraError> {
            let view = tensors.tensor(name).map_err(unsound)?;
            let all: Vec<f32> = view.data().as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
            match view.dtype() == Dtype::F32 && all.iter().all(|x| x.is_finite()) {
                true => Ok(all),
                false => Err(invalid(format!("'{}' holds what is no finite number", shown(name)))),
            }
        };
        let names: Option<Vec<String>> =
            state["names"].as_array().and_then(|all| all.iter().map(|name| name.as_str().map(str::to_owned)).collect());
        let names = names.ok_or_else(|| invalid("the checkpoint names no layers; start without --resume"))?;
        let kind = |kind: &str| -> Result<Vec<Vec<f32>>, LoraError> {
            let parts = names.iter().flat_map(|name| ["a", "b"].map(|part| format!("{name}.{part}.{kind}")));
            parts.map(|name| values(&name)).collect()
        };
        let n_steps = state["step"].as_u64().ok_or_else(|| invalid("the checkpoint has no step"))?;
        let adam = Adam { m: kind("mean")?, v: kind("square")?, n_steps };
        let seconds = state["seconds"].as_f64().unwrap_or(0.0);
        let (values, losses) = (kind("value")?, values("losses")?);
        Ok(Checkpoint { options: state["options"].clone(), names, values, adam, losses, seconds })
    }
}
