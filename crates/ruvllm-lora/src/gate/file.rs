//! Gates in files of safetensors.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::{Gate, GateLayer, GateShape};
use crate::error::{LoraError, LoraErrorKind, invalid, shape};

/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// The tensor of the window and the temperature.
const SETTINGS: &str = "settings";

impl Gate {
    /// Writes the gate as safetensors.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), LoraError> {
        let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let settings = vec![self.window as f32, self.temperature];
        let parts = [
            ("w1", vec![self.n_hidden, self.n_embd], bytes(&self.w1)),
            ("b1", vec![self.n_hidden], bytes(&self.b1)),
            ("w2", vec![self.n_adapters, self.n_hidden], bytes(&self.w2)),
            ("b2", vec![self.n_adapters], bytes(&self.b2)),
            (SETTINGS, vec![2], bytes(&settings)),
        ];
        let view = |bytes, shape: &[usize]| {
            TensorView::new(Dtype::F32, shape.to_vec(), bytes).expect("the shape has as many values")
        };
        let views: Vec<_> = parts.iter().map(|(name, shape, bytes)| (*name, view(&bytes[..], shape))).collect();
        let bytes = safetensors::serialize(views, None)
            .map_err(|error| invalid(format!("the gate cannot be written: {error}")).with_source(error))?;
        let partial = path.with_extension("part");
        let written = std::fs::write(&partial, bytes).and_then(|()| std::fs::rename(&partial, path));
        written.map_err(|error| io(path, error))
    }

    /// Reads a gate.
    ///
    /// # Errors
    /// The file cannot be read, is too large or no gate, or a value is no number.
    pub fn read(path: &Path) -> Result<Gate, LoraError> {
        let mut bytes = Vec::new();
        let mut file = File::open(path).map_err(|error| io(path, error))?.take(FILE_BYTES_MAX + 1);
        file.read_to_end(&mut bytes).map_err(|error| io(path, error))?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            let line = format!("{}: more than {FILE_BYTES_MAX} bytes are no gate", path.display());
            return Err(LoraError::new(LoraErrorKind::Limit, line));
        }
        Gate::of_bytes(&bytes).map_err(|error| error.within(path.display()))
    }

    fn of_bytes(bytes: &[u8]) -> Result<Gate, LoraError> {
        let tensors = SafeTensors::deserialize(bytes)
            .map_err(|error| invalid(format!("no sound safetensors file: {error}")).with_source(error))?;
        let part = |name: &str| -> Result<(Vec<usize>, Vec<f32>), LoraError> {
            let view = tensors.tensor(name).map_err(|_| invalid(format!("the gate has no '{name}'")))?;
            if view.dtype() != Dtype::F32 {
                return Err(invalid(format!("the gate's '{name}' is {:?}; save it as F32", view.dtype())));
            }
            let values = view.data().as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
            Ok((view.shape().to_vec(), values))
        };
        let ((w1_shape, w1), (w2_shape, w2)) = (part("w1")?, part("w2")?);
        let ([n_hidden, n_embd], [n_adapters, _]) = (&w1_shape[..], &w2_shape[..]) else {
            return Err(shape(format!("the gate's layers have shapes {w1_shape:?} and {w2_shape:?}")));
        };
        let [window, temperature] = part(SETTINGS)?.1[..] else {
            return Err(invalid("the gate's 'settings' are not two numbers: window and temperature"));
        };
        let sizes = GateShape {
            n_embd: *n_embd,
            n_hidden: *n_hidden,
            n_adapters: *n_adapters,
            window: if window.fract() == 0.0 { window as usize } else { 0 },
            temperature,
        };
        let first = GateLayer { weights: w1, bias: part("b1")?.1 };
        let second = GateLayer { weights: w2, bias: part("b2")?.1 };
        Gate::new(sizes, first, second)
    }
}

fn io(path: &Path, error: std::io::Error) -> LoraError {
    LoraError::new(LoraErrorKind::Io, format!("{}: {error}", path.display())).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_come_back_from_their_files() {
        let folder = tempfile::tempdir().expect("a folder");
        for seed in [7, 8] {
            let gate = gate(seed);
            let path = folder.path().join("gate.safetensors");
            gate.write(&path).expect("it can be written");
            assert_eq!(Gate::read(&path).expect("it can be read"), gate);
        }
    }

    fn gate(seed: u64) -> Gate {
        let sizes = GateShape { n_embd: 8, n_hidden: 4, n_adapters: 2, window: 16, temperature: 0.5 };
        Gate::seeded(sizes, seed).expect("a gate")
    }

    #[test]
    fn files_that_are_no_gate_are_refused_in_a_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("gate.safetensors");
        let line = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("a file");
            let line = Gate::read(&path).expect_err("it is refused").to_string();
            assert!(!line.contains('\n') && line.len() < 300, "{line}");
        };
        gate(8).write(&path).expect("it can be written");
        let bytes = std::fs::read(&path).expect("a file");
        line(b"");
        line(&[&u64::MAX.to_le_bytes()[..], &bytes[8..]].concat());
        line(&bytes[..bytes.len() - 3]);
        let mut nan = bytes.clone();
        let n = nan.len();
        nan[n - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
        line(&nan);
        assert!(Gate::read(&folder.path().join("nowhere")).is_err());
    }
}
