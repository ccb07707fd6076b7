//! Checkpoints of safetensors: one file, or several with an index. Files are mapped, and their directories checked before they
//! are believed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use ruvllm_gguf::MappedFile;
use safetensors::SafeTensors;
use serde_json::Value;

use super::folder::{Folder, io, open};
use super::stored::{Scale, Stored};
use crate::error::{ConvertError, shown};

/// The index of a checkpoint in several files.
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// The file of a checkpoint in one.
const WEIGHTS: &str = "model.safetensors";
/// The largest directory of a file.
const HEADER_BYTES_MAX: u64 = 16 << 20;
/// The most files of a checkpoint.
const N_FILES_MAX: usize = 1000;
/// The most tensors of a checkpoint.
const N_TENSORS_MAX: usize = 1 << 20;
/// The most dimensions of a tensor.
const N_DIMS_MAX: usize = 8;

/// The tensors of a checkpoint by name, in the order of their files.
#[derive(Debug)]
pub(super) struct Checkpoint {
    tensors: BTreeMap<String, Arc<Stored>>,
    maps: Vec<(std::path::PathBuf, Arc<MappedFile>)>,
}

impl Checkpoint {
    /// Opens the checkpoint in a folder.
    ///
    /// # Errors
    /// It has none in safetensors, a file is missing or damaged, or the index contradicts the files.
    pub(super) fn open(folder: &Folder) -> Result<Checkpoint, ConvertError> {
        let index_path = folder.path().join(INDEX);
        let index = index(folder)?;
        let names = match &index {
            Some(index) => files_of(index),
            None => folder.names("", |name| name.starts_with("model") && name.ends_with(".safetensors"))?,
        };
        if names.is_empty() {
            return Err(no_weights(folder));
        }
        if names.len() > N_FILES_MAX {
            let line = format!("the checkpoint has {} files, {N_FILES_MAX} are the most", names.len());
            return Err(ConvertError::invalid(line).at(folder.path()));
        }
        let mut checkpoint = Checkpoint { tensors: BTreeMap::new(), maps: Vec::new() };
        for name in &names {
            let path = folder.place(name).map_err(|error| error.at(&index_path))?;
            if index.is_some() && std::fs::symlink_metadata(&path).is_err() {
                let line = format!("is missing, which {INDEX} names; download the folder again");
                return Err(ConvertError::invalid(line).at(&path));
            }
            checkpoint.add(&path).map_err(|error| error.at(&path))?;
        }
        match index {
            Some(index) => checkpoint.check(&index).map_err(|error| error.at(&index_path))?,
            None if checkpoint.tensors.is_empty() => return Err(no_weights(folder)),
            None => {}
        }
        Ok(checkpoint)
    }

    fn add(&mut self, path: &Path) -> Result<(), ConvertError> {
        let file = open(path)?;
        let map = MappedFile::new(&file).map_err(|error| io("cannot map", &error))?;
        let map = Arc::new(map);
        let damaged = |what: &str| ConvertError::invalid(format!("damaged safetensors: {what}; download it again"));
        let header = map.first_chunk::<8>().ok_or_else(|| damaged("it is shorter than 8 bytes"))?;
        let n_header = u64::from_le_bytes(*header);
        if n_header > HEADER_BYTES_MAX || n_header > map.len() as u64 - 8 {
            return Err(damaged(&format!("its directory has {n_header} bytes, the file has {}", map.len())));
        }
        let read = SafeTensors::read_metadata(&map);
        let (n_header, directory) = read.map_err(|error| damaged(&shown(&error.to_string())))?;
        for (name, info) in directory.tensors() {
            let (start, end) = info.data_offsets;
            if info.shape.len() > N_DIMS_MAX || info.shape.contains(&0) {
                let line =
                    format!("has shape {:?}, which is no tensor of a model", &info.shape[..info.shape.len().min(9)]);
                return Err(ConvertError::invalid(line).of_tensor(&name));
            }
            let stored = Stored {
                name: name.clone(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                map: Arc::clone(&map),
                range: start + n_header + 8..end + n_header + 8,
                scale: None,
            };
            if self.tensors.insert(name.clone(), Arc::new(stored)).is_some() {
                return Err(ConvertError::invalid("is in two files of the checkpoint").of_tensor(&name));
            }
            if self.tensors.len() > N_TENSORS_MAX {
                return Err(damaged(&format!("more than {N_TENSORS_MAX} tensors")));
            }
        }
        self.maps.push((path.to_owned(), map));
        Ok(())
    }

    /// Checks that the files have what the index says, and nothing else.
    fn check(&self, index: &BTreeMap<String, String>) -> Result<(), ConvertError> {
        if let Some((name, file)) = index.iter().find(|(name, _)| !self.tensors.contains_key(*name)) {
            let line =
                format!("says '{}' is in {}, and it is not; download the folder again", shown(name), shown(file));
            return Err(ConvertError::invalid(line));
        }
        match self.tensors.keys().find(|name| !index.contains_key(*name)) {
            Some(name) => {
                let line = format!("does not know '{}', which its files have; download the folder again", shown(name));
                Err(ConvertError::invalid(line))
            }
            None => Ok(()),
        }
    }

    /// Returns the tensors by name.
    pub(super) fn tensors(&self) -> &BTreeMap<String, Arc<Stored>> {
        &self.tensors
    }

    /// Returns the bytes of all tensors.
    pub(super) fn n_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.range.len() as u64).sum()
    }

    /// Checks that no file was cut short while it was read.
    ///
    /// # Errors
    /// One was.
    pub(super) fn check_whole(&self) -> Result<(), ConvertError> {
        match self.maps.iter().find(|(_, map)| map.watch().is_cut()) {
            Some((path, _)) => Err(ConvertError::invalid("was cut short while it was read").at(path)),
            None => Ok(()),
        }
    }

    /// Joins values of 8 bits with their scales.
    ///
    /// # Errors
    /// Their shapes do not fit.
    pub(super) fn dequantize(&mut self, quantization: &Quantization) -> Result<(), ConvertError> {
        let Quantization::Scaled(block) = quantization else { return Ok(()) };
        const SCALES: [(&str, &str); 3] =
            [("_scale_inv", ""), (".weight_scale", ".weight"), (".qscale_weight", ".weight")];
        const UNUSED: [&str; 5] = ["activation_scale", ".input_scale", ".k_scale", ".v_scale", ".qscale_act"];
        let names: Vec<String> = self.tensors.keys().cloned().collect();
        for name in names {
            if UNUSED.iter().any(|end| name.ends_with(end)) {
                self.tensors.remove(&name);
                continue;
            }
            let of = SCALES.iter().find_map(|(end, with)| Some(format!("{}{with}", name.strip_suffix(end)?)));
            let Some(weight) = of.and_then(|of| self.tensors.get(&of).cloned()) else { continue };
            let Some(scale) = self.tensors.remove(&name) else { continue };
            let scale = Scale::new(&weight, &scale, block.as_deref())?;
            let joined = Stored { scale: Some(Arc::new(scale)), ..(*weight).clone() };
            self.tensors.insert(weight.name.clone(), Arc::new(joined));
        }
        Ok(())
    }
}

/// Quantisation of a checkpoint.
#[derive(Debug)]
pub(super) enum Quantization {
    /// As gpt-oss: in MXFP4, which is kept as it is.
    Mxfp4,
    /// Not at all, or to 8 bits with scales of blocks of a size, where one is told.
    Scaled(Option<Vec<usize>>),
}

impl Quantization {
    /// Finds how a checkpoint was quantised, as its configuration says.
    ///
    /// # Errors
    /// It is in a way that is not read.
    pub(super) fn of(config: &Value) -> Result<Quantization, ConvertError> {
        let quantization = &config["quantization_config"];
        let block = match quantization["quant_method"].as_str() {
            Some("mxfp4") => return Ok(Quantization::Mxfp4),
            None | Some("modelopt") => None,
            Some("fp8") => block_of(&quantization["weight_block_size"])?,
            Some("compressed-tensors") => {
                let format = quantization["format"].as_str().unwrap_or_default();
                if !matches!(format, "float-quantized" | "naive-quantized") {
                    return Err(quantized(&format!("compressed-tensors ({})", shown(format))));
                }
                let groups = quantization["config_groups"].as_object().into_iter().flatten();
                let weights = groups.map(|(_, group)| &group["weights"]["block_structure"]).next();
                weights.map(block_of).transpose()?.flatten()
            }
            Some(other) => return Err(quantized(&shown(other))),
        };
        Ok(Quantization::Scaled(block))
    }
}

/// Returns the names of the files with the weights of a folder: those that its index names, else the usual one.
///
/// # Errors
/// The index is damaged, or names files that are not in the folder.
pub(super) fn weight_files(folder: &Folder) -> Result<Vec<String>, ConvertError> {
    let Some(index) = index(folder)? else { return Ok(vec![WEIGHTS.to_owned()]) };
    let names = files_of(&index);
    for name in &names {
        folder.place(name).map_err(|error| error.at(&folder.path().join(INDEX)))?;
    }
    Ok(names)
}

/// Reads the index of a folder, if it has one: the file of each tensor.
fn index(folder: &Folder) -> Result<Option<BTreeMap<String, String>>, ConvertError> {
    let index = folder.json(INDEX)?.map(|index| weight_map(&index)).transpose();
    index.map_err(|error| error.at(&folder.path().join(INDEX)))
}

/// Returns the files that an index names.
fn files_of(index: &BTreeMap<String, String>) -> Vec<String> {
    index.values().cloned().collect::<BTreeSet<String>>().into_iter().collect()
}

fn quantized(how: &str) -> ConvertError {
    let line = format!("the checkpoint is quantised by {how}, which is not read; use one in F16, BF16, F32 or FP8");
    ConvertError::unsupported(line)
}

fn block_of(value: &Value) -> Result<Option<Vec<usize>>, ConvertError> {
    let Some(sizes) = value.as_array() else { return Ok(None) };
    let sizes: Option<Vec<usize>> = sizes.iter().map(|n| n.as_u64().map(|n| n as usize).filter(|&n| n > 0)).collect();
    match sizes.filter(|sizes| (1..=2).contains(&sizes.len())) {
        Some(sizes) => Ok(Some(sizes)),
        None => Err(ConvertError::invalid("config.json: the blocks of scales have no usable size")),
    }
}

fn weight_map(index: &Value) -> Result<BTreeMap<String, String>, ConvertError> {
    let map = index["weight_map"].as_object().ok_or_else(|| ConvertError::invalid("has no weight_map"))?;
    if map.len() > N_TENSORS_MAX {
        return Err(ConvertError::invalid(format!("names more than {N_TENSORS_MAX} tensors")));
    }
    let file = |(name, file): (&String, &Value)| Some((name.clone(), file.as_str()?.to_owned()));
    let map: Option<BTreeMap<String, String>> = map.iter().map(file).collect();
    map.filter(|map| !map.is_empty()).ok_or_else(|| ConvertError::invalid("its weight_map names no files"))
}

fn no_weights(folder: &Folder) -> ConvertError {
    let has_pickles =
        folder.names("", |name| name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth"));
    let line = match has_pickles.is_ok_and(|names| !names.is_empty()) {
        true => "has no model.safetensors, only pickled weights; save it again with safe_serialization=True",
        false => "has no model.safetensors; download it again",
    };
    ConvertError::invalid(line).at(folder.path())
}
