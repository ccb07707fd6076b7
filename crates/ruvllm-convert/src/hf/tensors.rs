//! Plan of a file's tensors, made of a checkpoint's by the rules of its architecture. No value is read for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ruvllm_ggml::GgmlType;
use safetensors::Dtype;

use super::arch::{self, Architecture, How, MadeTensor};
use super::checkpoint::Checkpoint;
use super::config::Config;
use super::stored::Stored;
use super::view::{Floats, Op, View};
use crate::error::ConvertError;
use crate::plan::layer;

/// A tensor of the file.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) name: String,
    /// Row-major, the contiguous dimension last.
    pub(super) shape: Vec<usize>,
    pub(super) ty: GgmlType,
    pub(super) values: Values,
}

/// Values of a tensor of the file.
#[derive(Debug)]
pub(super) enum Values {
    /// Floats.
    Floats(Floats),
    /// Codes of MXFP4 with their scales, rows of blocks.
    Mxfp4 {
        /// 16 bytes a block.
        codes: View,
        /// One byte a block.
        scales: View,
    },
    /// Values at hand.
    Made(Vec<f32>),
}

impl Values {
    /// Returns the bytes of the sources.
    pub(super) fn source_bytes(&self) -> u64 {
        match self {
            Values::Floats(floats) => floats.source_bytes(),
            Values::Mxfp4 { codes, scales } => (codes.n_elements() + scales.n_elements()) as u64,
            Values::Made(_) => 0,
        }
    }
}

/// Makes the plan of a checkpoint's tensors, in the order of layers and names.
pub(super) struct Planner<'a> {
    architecture: &'a Architecture,
    config: &'a Config,
    checkpoint: &'a Checkpoint,
    /// Type of matrices.
    ty: GgmlType,
    /// Tokens of the tokenizer.
    n_tokens: usize,
    planned: Vec<Planned>,
    /// What is stacked, by name in the file, then by number.
    stacks: BTreeMap<String, BTreeMap<usize, Arc<Stored>>>,
}

impl<'a> Planner<'a> {
    pub(super) fn new(
        architecture: &'a Architecture,
        config: &'a Config,
        checkpoint: &'a Checkpoint,
        ty: GgmlType,
        n_tokens: usize,
    ) -> Planner<'a> {
        let (planned, stacks) = (Vec::new(), BTreeMap::new());
        Planner { architecture, config, checkpoint, ty, n_tokens, planned, stacks }
    }

    /// Plans all tensors, those that are made included.
    ///
    /// # Errors
    /// A tensor is not known, or not of a shape that the configuration says.
    pub(super) fn plan(mut self, made: Vec<MadeTensor>) -> Result<Vec<Planned>, ConvertError> {
        for made in made {
            let shape = made.shape();
            self.push(made.name.to_owned(), shape, Values::Made(made.values));
        }
        for (name, stored) in self.checkpoint.tensors() {
            if !self.is_left_out(name)? {
                self.add(name, stored)?;
            }
        }
        for (name, stack) in std::mem::take(&mut self.stacks) {
            let floats = self.stacked(&name, stack)?;
            self.push_floats(name, floats);
        }
        self.drop_second_embeddings();
        let mut planned = self.planned;
        planned.sort_by(|a, b| (layer(&a.name), &a.name).cmp(&(layer(&b.name), &b.name)));
        if let Some(pair) = planned.windows(2).find(|pair| pair[0].name == pair[1].name) {
            let line = "two tensors of the checkpoint become this one";
            return Err(ConvertError::invalid(line).of_tensor(&pair[0].name));
        }
        Ok(planned)
    }

    /// Returns whether a tensor is no part of the model: of other senses, or of layers that only drafts need.
    fn is_left_out(&self, name: &str) -> Result<bool, ConvertError> {
        let has_one_matrix = self.architecture.name == "deepseek2" && self.config.is("tie_word_embeddings");
        if self.architecture.is_left_out(name) || has_one_matrix && name == "lm_head.weight" {
            return Ok(true);
        }
        let layer = name.split('.').find_map(|part| part.parse::<usize>().ok());
        let n_layers = self.config.n_layers()?;
        match layer.filter(|&layer| layer >= n_layers) {
            None => Ok(false),
            Some(_) if self.architecture.name == "deepseek2" => Ok(true),
            Some(layer) => {
                let line = format!("is of layer {layer}, and config.json says that there are {n_layers}");
                Err(ConvertError::invalid(line).of_tensor(name))
            }
        }
    }

    fn add(&mut self, name: &str, stored: &Arc<Stored>) -> Result<(), ConvertError> {
        let Some(found) = self.architecture.rule(name) else {
            let line =
                format!("models of {} have none of this name; is config.json of this model?", self.architecture.name);
            return Err(ConvertError::unsupported(line).of_tensor(name));
        };
        let to = |i: usize| found.to[i].clone();
        match found.how {
            How::Skip => {}
            How::Zeros => self.check_zeros(stored)?,
            How::Stack => {
                stored.check_floats()?;
                let index = found.index.ok_or_else(|| ConvertError::invalid("has no number").of_tensor(name))?;
                self.stacks.entry(to(0)).or_default().insert(index, Arc::clone(stored));
            }
            How::LatentKv | How::Halves | How::Interleaved | How::InterleavedTransposed => {
                let [first, second] = self.divided(found.how, stored)?;
                self.push_floats(to(0), first);
                self.push_floats(to(1), second);
            }
            How::Mxfp4 | How::Mxfp4Interleaved => {
                let both = found.how == How::Mxfp4Interleaved;
                for (i, name) in found.to.iter().enumerate() {
                    let (shape, values) = self.mxfp4(stored, both.then_some(i))?;
                    self.push(name.clone(), shape, values);
                }
            }
            how => {
                let floats = self.changed(how, stored)?;
                self.push_floats(to(0), floats);
            }
        }
        Ok(())
    }

    /// Changes a tensor into one other.
    fn changed(&self, how: How, stored: &Arc<Stored>) -> Result<Floats, ConvertError> {
        let config = self.config;
        let floats = || Floats::stored(stored);
        let rows = stored.shape.first().copied().unwrap_or(1);
        match how {
            How::PermuteQ => self.permuted(stored, config.n_heads()?),
            How::PermuteK => self.permuted(stored, config.n_kv_heads()?),
            How::PlusOne => Ok(floats()?.with(Op::Add(1.0))),
            How::NegExp => Ok(floats()?.with(Op::NegExp)),
            How::NegExpColumn => Ok(floats()?.shaped(&[rows, 1])?.with(Op::NegExp)),
            How::Column => floats()?.shaped(&[rows, 1]),
            How::Transposed => Floats::view(matrix(stored, 2)?.permute(&[1, 0])),
            How::TransposedExperts => Floats::view(matrix(stored, 3)?.permute(&[0, 2, 1])),
            How::Squeezed => {
                let shape: Vec<usize> = stored.shape.iter().copied().filter(|&n| n != 1).collect();
                floats()?.shaped(&shape)
            }
            How::Groups => {
                let n_groups = arch::n_groups(config)?;
                floats()?.shaped(&[n_groups, arch::n_inner(config)? / n_groups])
            }
            How::QkvByHead => {
                let n_heads = config.n_heads()?;
                let head_dim = (rows / 3).checked_div(n_heads).unwrap_or(0);
                let view = View::whole(stored).split(0, &[n_heads, 3, head_dim])?;
                let order: &[usize] = if stored.shape.len() == 1 { &[1, 0, 2] } else { &[1, 0, 2, 3] };
                Floats::view(view.permute(order))?.shaped(&stored.shape)
            }
            How::Positions => {
                let n_padding = arch::n_padding(config)?;
                Floats::view(matrix(stored, 2)?.slice(0, n_padding, 1, rows.saturating_sub(n_padding))?)
            }
            How::Tokens => {
                let n = rows.min(self.n_tokens);
                Floats::view(matrix(stored, 2)?.slice(0, 0, 1, n)?)
            }
            How::Classes if rows == 1 => {
                let line = "makes one score by ReLU, and GGUF files have tanh there, so such a ranker would answer wrongly; \
                            use one of class BertForSequenceClassification";
                Err(ConvertError::unsupported(line).of_tensor(&stored.name))
            }
            How::Scaled(settings) => arch::scaled(floats()?, config, settings),
            How::ScaledParts => self.scaled_parts(stored),
            _ => floats(),
        }
    }

    /// Puts rows of heads into the order of rotation by neighbours.
    fn permuted(&self, stored: &Arc<Stored>, n_heads: usize) -> Result<Floats, ConvertError> {
        let rows = stored.shape.first().copied().unwrap_or(0);
        let half = (rows / 2).checked_div(n_heads).unwrap_or(0);
        let view = View::whole(stored).split(0, &[n_heads, 2, half])?;
        let order: Vec<usize> = [0, 2, 1].into_iter().chain(3..view.dims().len()).collect();
        Floats::view(view.permute(&order))?.shaped(&stored.shape)
    }

    /// Divides a tensor into two.
    fn divided(&self, how: How, stored: &Arc<Stored>) -> Result<[Floats; 2], ConvertError> {
        let config = self.config;
        match how {
            How::LatentKv => {
                let n_heads = config.n_kv_heads()?;
                let (n_k, n_v) = (config.positive(&["qk_nope_head_dim"])?, config.positive(&["v_head_dim"])?);
                let view = matrix(stored, 2)?.split(0, &[n_heads, n_k + n_v])?;
                let keys = view.clone().slice(1, 0, 1, n_k)?.permute(&[0, 2, 1]);
                Ok([Floats::view(keys)?, Floats::view(view.slice(1, n_k, 1, n_v)?)?])
            }
            How::Halves => {
                let view = View::whole(stored);
                let dim = view.dims().len().saturating_sub(2);
                let half = view.dims().get(dim).copied().unwrap_or(0) / 2;
                let halves = view.split(dim, &[2, half])?;
                let shape: Vec<usize> =
                    stored.shape.iter().enumerate().map(|(i, &n)| if i == dim { half } else { n }).collect();
                let one = |i| Floats::view(halves.clone().slice(dim, i, 1, 1)?)?.shaped(&shape);
                Ok([one(0)?, one(1)?])
            }
            How::Interleaved => {
                let view = matrix(stored, 2)?;
                let half = view.dims()[1] / 2;
                let one = |start| Floats::view(view.clone().slice(1, start, 2, half)?);
                Ok([one(0)?, one(1)?])
            }
            _ => {
                let view = matrix(stored, 3)?.permute(&[0, 2, 1]);
                let half = view.dims()[1] / 2;
                let one = |start| Floats::view(view.clone().slice(1, start, 2, half)?);
                Ok([one(0)?, one(1)?])
            }
        }
    }

    /// Takes codes of MXFP4 and the scales beside them; of rows that take turns the even or the odd ones.
    fn mxfp4(&self, stored: &Arc<Stored>, turn: Option<usize>) -> Result<(Vec<usize>, Values), ConvertError> {
        let wrong = |what: &str| ConvertError::invalid(format!("as codes of MXFP4 {what}")).of_tensor(&stored.name);
        let name = stored.name.replace("_blocks", "_scales");
        let scales = self.checkpoint.tensors().get(&name).ok_or_else(|| wrong("it has no scales"))?;
        if stored.dtype != Dtype::U8 || scales.dtype != Dtype::U8 {
            return Err(wrong("it has values of another type than bytes"));
        }
        let [experts, rows, blocks, 16] = stored.shape[..] else {
            return Err(wrong(&format!("it has shape {:?}", stored.shape)));
        };
        if scales.shape != [experts, rows, blocks] {
            return Err(wrong(&format!("its scales have shape {:?}", scales.shape)));
        }
        let (mut codes, mut scales) = (View::whole(stored), View::whole(scales));
        if let Some(turn) = turn {
            codes = codes.slice(1, turn, 2, rows / 2)?;
            scales = scales.slice(1, turn, 2, rows / 2)?;
        }
        let shape = vec![experts, codes.dims()[1], blocks * 32];
        Ok((shape, Values::Mxfp4 { codes, scales }))
    }

    /// Multiplies the input of a state space, and its parts: gate, values, what is written, what is read, time steps.
    fn scaled_parts(&self, stored: &Arc<Stored>) -> Result<Floats, ConvertError> {
        let config = self.config;
        let floats = arch::scaled(Floats::stored(stored)?, config, &["ssm_in_multiplier"])?;
        let factors = config.floats("ssm_multipliers")?;
        let n_state = arch::n_groups(config)? * config.count(&["mamba_d_state", "state_size"])?;
        let (n_inner, n_rows) = (arch::n_inner(config)?, stored.shape.first().copied().unwrap_or(0));
        let ends = [n_inner, 2 * n_inner, 2 * n_inner + n_state, 2 * n_inner + 2 * n_state, n_rows];
        if factors.len() != ends.len() || !ends.is_sorted() {
            let line = format!("has shape {:?} and {} multipliers, which do not fit", stored.shape, factors.len());
            return Err(ConvertError::invalid(line).of_tensor(&stored.name));
        }
        let rows = ends.into_iter().zip(factors.into_iter().map(|factor| factor as f32)).collect();
        Ok(floats.with(Op::ScaleRows(rows)))
    }

    fn stacked(&self, name: &str, stack: BTreeMap<usize, Arc<Stored>>) -> Result<Floats, ConvertError> {
        let want = match name.contains("_exps") {
            true => self.config.positive(&["num_local_experts", "num_experts", "n_routed_experts"])?,
            false => stack.len(),
        };
        if stack.len() != want || !stack.keys().copied().eq(0..want) {
            let line = format!("is made of {} tensors, the configuration says {want}", stack.len());
            return Err(ConvertError::invalid(line).of_tensor(name));
        }
        Floats::stack(stack.values().map(Floats::stored).collect::<Result<_, _>>()?)
    }

    fn check_zeros(&self, stored: &Arc<Stored>) -> Result<(), ConvertError> {
        stored.check_floats()?;
        match stored.values().iter().all(|&x| x == 0.0) {
            true => Ok(()),
            false => {
                let line = format!("is not 0, and files of {} have no place for it", self.architecture.name);
                Err(ConvertError::unsupported(line).of_tensor(&stored.name))
            }
        }
    }

    /// Leaves out the head of a Mamba if it is the embeddings again.
    fn drop_second_embeddings(&mut self) {
        if self.architecture.name != "mamba" {
            return;
        }
        let tensors = self.checkpoint.tensors();
        let embeddings = ["backbone.embeddings.weight", "backbone.embedding.weight"];
        let embeddings = embeddings.iter().find_map(|name| tensors.get(*name));
        let is_again =
            |head: &Arc<Stored>| embeddings.is_some_and(|one| one.dtype == head.dtype && one.bytes() == head.bytes());
        if tensors.get("lm_head.weight").is_some_and(is_again) {
            self.planned.retain(|tensor| tensor.name != "output.weight");
        }
    }

    fn push_floats(&mut self, name: String, floats: Floats) {
        self.push(name, floats.shape.clone(), Values::Floats(floats));
    }

    fn push(&mut self, name: String, shape: Vec<usize>, values: Values) {
        let ty = match values {
            Values::Mxfp4 { .. } => GgmlType::MXFP4,
            _ => type_of(&name, &shape, self.ty),
        };
        self.planned.push(Planned { name, shape, ty, values });
    }
}

/// Views a tensor that must have so many dimensions.
fn matrix(stored: &Arc<Stored>, n_dims: usize) -> Result<View, ConvertError> {
    match stored.shape.len() == n_dims {
        true => Ok(View::whole(stored)),
        false => {
            let line = format!("has shape {:?}, and should have {n_dims} dimensions", stored.shape);
            Err(ConvertError::invalid(line).of_tensor(&stored.name))
        }
    }
}

/// Returns the type of a tensor: vectors, norms, routers, positions and what is no weight of a product stay in F32.
fn type_of(name: &str, shape: &[usize], ty: GgmlType) -> GgmlType {
    const EXACT: [&str; 4] =
        [".ffn_gate_inp.weight", ".ffn_gate_inp_shexp.weight", ".ssm_conv1d.weight", ".shortconv.conv.weight"];
    let is_exact = shape.len() <= 1
        || !name.ends_with(".weight")
        || name.ends_with("_norm.weight")
        || EXACT.iter().any(|end| name.ends_with(end))
        || matches!(name, "position_embd.weight" | "token_types.weight");
    if is_exact { GgmlType::F32 } else { ty }
}

/// Returns the type of matrices that keeps the values of a checkpoint best in 16 bits: that of its first matrix.
pub(super) fn natural_type(checkpoint: &Checkpoint) -> GgmlType {
    let is_matrix = |stored: &&Arc<Stored>| stored.shape.len() >= 2;
    let of = |stored: &Arc<Stored>| match stored.dtype {
        Dtype::BF16 => Some(GgmlType::BF16),
        Dtype::F16 => Some(GgmlType::F16),
        _ => None,
    };
    checkpoint.tensors().values().filter(is_matrix).find_map(of).unwrap_or(GgmlType::F16)
}

/// Returns the type of matrices that loses nothing of a checkpoint, from which it is quantised.
pub(super) fn exact_type(checkpoint: &Checkpoint) -> GgmlType {
    use Dtype::{BF16, F16, F32, F64};
    let has =
        |dtype: Dtype| checkpoint.tensors().values().any(|stored| stored.dtype == dtype && stored.shape.len() >= 2);
    // Values of 8 bits times their scales have more digits than 16 bits hold.
    let has_scales = checkpoint.tensors().values().any(|stored| stored.scale.is_some());
    match (has(F16), has(BF16), has_scales || has(F32) || has(F64)) {
        (true, false, false) => GgmlType::F16,
        (false, _, false) => GgmlType::BF16,
        _ => GgmlType::F32,
    }
}
