//! A frozen transformer in f32, through which gradients flow to the factors beside its linear layers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::Tensor;
use ruvllm_kernels::rope::Rope;
use ruvllm_model::{
    AttentionSpec, FfnSpec, LayerSpec, LinearSpec, MixerSpec, MlpSpec, ModelSpec, NormKind, NormSpec, Pooling,
    RopeSpec, Wiring,
};

use super::loss::With;
use super::ops::{Activate, Apply, Attend, Gate, Geometry, Head, Linear, LogProbs, Norm, NormWeights, Rotate, tensor};
use super::spec::linears;
use crate::bound::{BaseWeights, Targets};
use crate::error::{LoraError, invalid, unsupported};

/// Sequences that are computed together, each seeing only itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Packed {
    /// Token ids, sequence after sequence.
    pub tokens: Vec<u32>,
    /// Tokens of each sequence.
    pub lengths: Vec<usize>,
}

impl Packed {
    pub(super) fn push(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
        self.lengths.push(tokens.len());
    }

    /// Iterates over first row and number of rows of each sequence.
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        self.lengths.iter().scan(0, |end, &n| {
            *end += n;
            Some((*end - n, n))
        })
    }
}

/// A linear layer and its number.
struct Layered {
    target: usize,
    linear: Arc<Linear>,
}

struct Attention {
    q: Layered,
    k: Layered,
    v: Layered,
    o: Layered,
    q_norm: Option<Arc<NormWeights>>,
    k_norm: Option<Arc<NormWeights>>,
    geometry: Geometry,
    rope: Option<usize>,
}

struct Mlp {
    gate: Option<Layered>,
    up: Layered,
    down: Layered,
    activation: ruvllm_kernels::activation::Activation,
}

struct Layer {
    attention_norm: Option<Arc<NormWeights>>,
    attention: Attention,
    attention_post_norm: Option<Arc<NormWeights>>,
    mlp_norm: Option<Arc<NormWeights>>,
    mlp: Mlp,
    mlp_post_norm: Option<Arc<NormWeights>>,
    wiring: Wiring,
}

/// Progress of reading the weights.
#[derive(Clone, Copy, Debug)]
pub struct ReadProgress {
    /// Values read.
    pub n_done: u64,
    /// Values in all.
    pub n_total: u64,
}

/// A frozen model whose linear layers may be adapted.
///
/// Its weights are f32 in memory: four bytes a parameter, but for the embeddings where no head shares them.
pub struct TrainModel {
    spec: ModelSpec,
    targets: Arc<Targets>,
    weights: Box<dyn BaseWeights + Send + Sync>,
    ropes: Vec<Rope>,
    /// `[n_embd]`, added to every row (BERT's first segment).
    segment: Option<Vec<f32>>,
    layers: Vec<Layer>,
    input_norm: Option<Arc<NormWeights>>,
    output_norm: Option<Arc<NormWeights>>,
    head: Option<Arc<Head>>,
    held: Held,
}

/// The stream of sequences behind blocks that no factor changes.
#[derive(Default)]
struct Held {
    /// Blocks before it; 0 holds nothing.
    n_blocks: usize,
    n_bytes_max: usize,
    /// By the tokens: `[n, n_embd]`.
    streams: Mutex<HashMap<Vec<u32>, Tensor>>,
}

impl std::fmt::Debug for TrainModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TrainModel({} layers of {})", self.layers.len(), self.spec.n_embd)
    }
}

/// Reads weights and tells how far that is.
struct Reader<'a> {
    weights: &'a dyn BaseWeights,
    /// What the factors' products are multiplied with.
    scale: f32,
    n_done: u64,
    n_total: u64,
    progress: &'a mut dyn FnMut(ReadProgress),
}

impl Reader<'_> {
    fn matrix(&mut self, spec: &LinearSpec) -> Result<Vec<f32>, LoraError> {
        let values = self.weights.values(&spec.weight)?;
        if values.iter().any(|x| !x.is_finite()) {
            return Err(invalid(format!("tensor '{}' holds what is no finite number", spec.weight.tensor)));
        }
        self.n_done += values.len() as u64;
        (self.progress)(ReadProgress { n_done: self.n_done, n_total: self.n_total });
        Ok(values)
    }

    fn bias(&self, spec: &LinearSpec) -> Result<Option<Vec<f32>>, LoraError> {
        spec.bias.as_ref().map(|bias| self.weights.values(bias)).transpose()
    }

    fn linear(&mut self, spec: &LinearSpec) -> Result<Layered, LoraError> {
        let values = self.matrix(spec)?;
        let linear = Arc::new(Linear::new(values, spec.n_out(), spec.n_in(), self.bias(spec)?, self.scale)?);
        Ok(Layered { target: spec.id, linear })
    }

    fn head(&mut self, spec: &ModelSpec) -> Result<Option<Arc<Head>>, LoraError> {
        let Some(linear) = &spec.output.head else { return Ok(None) };
        let values = self.matrix(linear)?;
        let (bias, output) = (self.bias(linear)?, &spec.output);
        Ok(Some(Arc::new(Head::new(values, linear.n_in(), bias, output.scale, output.softcap)?)))
    }

    fn norm(&self, spec: Option<&NormSpec>) -> Result<Option<Arc<NormWeights>>, LoraError> {
        let Some(spec) = spec else { return Ok(None) };
        Ok(Some(Arc::new(NormWeights {
            is_layer: spec.kind == NormKind::Layer,
            width: spec.weight.n_cols,
            weight: self.weights.values(&spec.weight)?,
            bias: spec.bias.as_ref().map(|bias| self.weights.values(bias)).transpose()?,
            eps: spec.eps,
        })))
    }

    fn attention(&mut self, spec: &AttentionSpec) -> Result<Attention, LoraError> {
        if spec.sinks.is_some() {
            return Err(not_trained("attention sinks"));
        }
        Ok(Attention {
            q: self.linear(&spec.q)?,
            k: self.linear(&spec.k)?,
            v: self.linear(&spec.v)?,
            o: self.linear(&spec.o)?,
            q_norm: self.norm(spec.q_norm.as_ref())?,
            k_norm: self.norm(spec.k_norm.as_ref())?,
            geometry: Geometry {
                n_heads: spec.n_heads,
                n_kv_heads: spec.n_kv_heads,
                k_dim: spec.k_dim,
                v_dim: spec.v_dim,
                scale: spec.scale,
                softcap: spec.softcap,
                window: spec.window,
                is_causal: spec.is_causal,
            },
            rope: spec.rope,
        })
    }

    fn mlp(&mut self, spec: &MlpSpec) -> Result<Mlp, LoraError> {
        Ok(Mlp {
            gate: spec.gate.as_ref().map(|gate| self.linear(gate)).transpose()?,
            up: self.linear(&spec.up)?,
            down: self.linear(&spec.down)?,
            activation: spec.activation,
        })
    }

    fn layer(&mut self, spec: &LayerSpec) -> Result<Layer, LoraError> {
        let attention = match &spec.mixer {
            MixerSpec::Attention(attention) => attention,
            MixerSpec::LatentAttention(_) => return Err(not_trained("latent attention")),
            MixerSpec::ShortConv(_) => return Err(not_trained("convolutions")),
            MixerSpec::Mamba(_) | MixerSpec::Mamba2(_) | MixerSpec::AttentionAndMamba2(..) => {
                return Err(not_trained("state spaces"));
            }
        };
        let Some(FfnSpec::Mlp(mlp)) = &spec.ffn else { return Err(not_trained("experts")) };
        Ok(Layer {
            attention_norm: self.norm(spec.mixer_norm.as_ref())?,
            attention: self.attention(attention)?,
            attention_post_norm: self.norm(spec.mixer_post_norm.as_ref())?,
            mlp_norm: self.norm(spec.ffn_norm.as_ref())?,
            mlp: self.mlp(mlp)?,
            mlp_post_norm: self.norm(spec.ffn_post_norm.as_ref())?,
            wiring: spec.wiring,
        })
    }
}

fn not_trained(what: &str) -> LoraError {
    unsupported(format!("models with {what} cannot be trained here; train a dense one"))
}

/// What stays the same over the layers of one pass.
struct Pass<'a> {
    lengths: Arc<[usize]>,
    rotations: Vec<Rotate>,
    with: With<'a>,
}

impl TrainModel {
    /// Reads a model's weights. The products of factors will be multiplied with `scale`.
    ///
    /// # Errors
    /// The model has experts, convolutions or attention sinks; a tensor cannot be read or holds what is no number.
    pub fn read(
        spec: ModelSpec,
        targets: Arc<Targets>,
        weights: Box<dyn BaseWeights + Send + Sync>,
        scale: f32,
        progress: &mut dyn FnMut(ReadProgress),
    ) -> Result<TrainModel, LoraError> {
        let n_total = spec.linears().iter().map(|linear| linear.weight.n_values() as u64).sum();
        let mut reader = Reader { weights: &*weights, scale, n_done: 0, n_total, progress };
        let layers = spec.layers.iter().map(|layer| reader.layer(layer)).collect::<Result<_, _>>()?;
        let head = reader.head(&spec)?;
        let input_norm = reader.norm(spec.input.norm.as_ref())?;
        let output_norm = reader.norm(spec.output.norm.as_ref())?;
        let rope = |own: &RopeSpec| own.rope(|factors| weights.values(factors));
        let ropes = spec.ropes.iter().map(rope).collect::<Result<_, LoraError>>()?;
        let segment = spec.input.types.as_ref().map(|types| weights.values(&types.row(0))).transpose()?;
        let held = Held::default();
        Ok(TrainModel { spec, targets, weights, ropes, segment, layers, input_norm, output_norm, head, held })
    }

    /// Holds what the first blocks make of each sequence, in up to `n_bytes_max` bytes: for trainings that adapt only the blocks from
    /// `n_blocks` on ([`TrainOptions::first_block`](super::TrainOptions::first_block)) and see the same texts again. Results differ by
    /// rounding from those without, since sequences run through these blocks one by one, and repeat to the bit.
    pub fn hold_frozen(&mut self, n_blocks: usize, n_bytes_max: usize) {
        self.held = Held { n_blocks: n_blocks.min(self.layers.len()), n_bytes_max, ..Held::default() };
    }

    /// Returns what the model is made of.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Returns its linear layers.
    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Returns the logits of every position of a sequence without adapters: `[n_tokens, n_vocab]`.
    ///
    /// # Errors
    /// The model has no head, or a token is beyond its vocabulary.
    pub fn logits(&self, tokens: &[u32]) -> Result<Vec<f32>, LoraError> {
        let mut packed = Packed::default();
        packed.push(tokens);
        Ok(self.head()?.logits(&self.hidden(&packed, With::Base)?)?)
    }

    pub(super) fn head(&self) -> Result<&Arc<Head>, LoraError> {
        self.head.as_ref().ok_or_else(|| invalid("the model has no head for tokens; use --loss infonce or triplet"))
    }

    /// Computes the final states of all rows, behind the last norm: `[n, n_embd]`.
    pub(super) fn hidden(&self, packed: &Packed, with: With<'_>) -> Result<Tensor, LoraError> {
        // A block that is adapted is not frozen, whoever promised so.
        let is_free = |linear: &LinearSpec| with.pair(linear.id).is_none();
        let is_frozen =
            (0..self.held.n_blocks).all(|i| linears(&self.spec.layers[i]).all(|(_, linear)| is_free(linear)));
        let n_held = if is_frozen { self.held.n_blocks } else { 0 };
        let pass = self.pass(packed, with);
        let mut x = match n_held {
            0 => normed(&self.input_norm, self.embed(packed)?)?,
            _ => {
                let streams = packed.places().map(|(first, n)| self.held(&packed.tokens[first..first + n]));
                Tensor::cat(&streams.collect::<Result<Vec<_>, _>>()?, 0)?
            }
        };
        for layer in &self.layers[n_held..] {
            x = self.layer(layer, &pass, x)?;
        }
        Ok(normed(&self.output_norm, x)?)
    }

    fn pass<'a>(&self, packed: &Packed, with: With<'a>) -> Pass<'a> {
        let rotations = self.ropes.iter().map(|rope| rotation(rope, packed)).collect();
        Pass { lengths: packed.lengths.clone().into(), rotations, with }
    }

    /// Returns the stream of a sequence behind the blocks that are held: `[n, n_embd]`.
    fn held(&self, tokens: &[u32]) -> Result<Tensor, LoraError> {
        // Nothing between locking and unlocking leaves it half changed.
        let streams = || self.held.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = streams().get(tokens) {
            return Ok(stream.clone());
        }
        let mut packed = Packed::default();
        packed.push(tokens);
        let pass = self.pass(&packed, With::Base);
        let mut x = normed(&self.input_norm, self.embed(&packed)?)?;
        for layer in &self.layers[..self.held.n_blocks] {
            x = self.layer(layer, &pass, x)?;
        }
        let mut streams = streams();
        let n_bytes: usize = streams.keys().map(|tokens| tokens.len() * self.spec.n_embd * size_of::<f32>()).sum();
        if n_bytes + tokens.len() * self.spec.n_embd * size_of::<f32>() <= self.held.n_bytes_max {
            streams.insert(tokens.to_vec(), x.clone());
        }
        Ok(x)
    }

    fn embed(&self, packed: &Packed) -> Result<Tensor, LoraError> {
        let (spec, n) = (&self.spec, packed.tokens.len());
        let mut x = vec![0.0; n * spec.n_embd];
        for (&token, row) in packed.tokens.iter().zip(x.chunks_exact_mut(spec.n_embd)) {
            let n_tokens = spec.input.tokens.n_rows();
            if token as usize >= n_tokens {
                return Err(invalid(format!("token {token} of a vocabulary of {n_tokens}")));
            }
            row.copy_from_slice(&self.weights.values(&spec.input.tokens.row(token as usize))?);
            row.iter_mut().for_each(|x| *x *= spec.input.scale);
            if let Some(segment) = &self.segment {
                row.iter_mut().zip(segment).for_each(|(x, s)| *x += s);
            }
        }
        if let Some(positions) = &spec.input.positions {
            let n_positions = positions.n_rows();
            for (first, n) in packed.places() {
                if n > n_positions {
                    return Err(invalid(format!("a text of {n} tokens; the model has {n_positions} positions")));
                }
                for i in 0..n {
                    let added = self.weights.values(&positions.row(i))?;
                    let row = &mut x[(first + i) * spec.n_embd..][..spec.n_embd];
                    row.iter_mut().zip(&added).for_each(|(x, p)| *x += p);
                }
            }
        }
        Ok(tensor(x, (n, spec.n_embd))?)
    }

    fn layer(&self, layer: &Layer, pass: &Pass<'_>, x: Tensor) -> Result<Tensor, LoraError> {
        let scale = f64::from(self.spec.residual_scale);
        let join = |x: &Tensor, branch: Tensor| {
            if scale == 1.0 { x + branch } else { x + branch.affine(scale, 0.0)? }
        };
        let source = normed(&layer.attention_norm, x.clone())?;
        let mixed = self.attend(&layer.attention, pass, &source)?;
        Ok(match layer.wiring {
            Wiring::Sequential => {
                let x = join(&x, normed(&layer.attention_post_norm, mixed)?)?;
                let fed = feed(&layer.mlp, pass, &normed(&layer.mlp_norm, x.clone())?)?;
                join(&x, normed(&layer.mlp_post_norm, fed)?)?
            }
            Wiring::Parallel => {
                let source = if layer.mlp_norm.is_some() { normed(&layer.mlp_norm, x.clone())? } else { source };
                (x + mixed)?.add(&feed(&layer.mlp, pass, &source)?)?
            }
            Wiring::PostNorm => {
                let x = normed(&layer.attention_post_norm, (x + mixed)?)?;
                let fed = feed(&layer.mlp, pass, &x)?;
                normed(&layer.mlp_post_norm, (x + fed)?)?
            }
        })
    }

    fn attend(&self, attention: &Attention, pass: &Pass<'_>, x: &Tensor) -> candle_core::Result<Tensor> {
        let place = |x: Tensor, norm: &Option<Arc<NormWeights>>| {
            let x = normed(norm, x)?;
            attention.rope.map_or(Ok(x.clone()), |rope| {
                let head_dim = attention.geometry.k_dim;
                x.apply_op1(Rotate { head_dim, ..pass.rotations[rope].clone() })
            })
        };
        let q = place(pass.linear(&attention.q, x)?, &attention.q_norm)?;
        let k = place(pass.linear(&attention.k, x)?, &attention.k_norm)?;
        let v = pass.linear(&attention.v, x)?;
        let op = Attend { geometry: attention.geometry, lengths: Arc::clone(&pass.lengths) };
        pass.linear(&attention.o, &q.apply_op3(&k, &v, op)?)
    }

    /// Computes the log-probability of `tokens[i]` behind row `rows[i]` of the final states: `[n]`.
    pub(super) fn log_probs(&self, hidden: &Tensor, rows: &[u32], tokens: Vec<u32>) -> Result<Tensor, LoraError> {
        let rows = Tensor::from_slice(rows, rows.len(), hidden.device())?;
        let picked = hidden.index_select(&rows, 0)?;
        let op = LogProbs::new(self.head()?, tokens, picked.track_op());
        Ok(picked.apply_op1(op)?)
    }

    /// Computes one vector for each sequence, of length 1: `[n_sequences, n_embd]`.
    pub(super) fn pooled(&self, hidden: &Tensor, packed: &Packed) -> Result<Tensor, LoraError> {
        let (n_seq, n) = (packed.lengths.len(), packed.tokens.len());
        let mut shares = vec![0.0; n_seq * n];
        for (row, (first, len)) in shares.chunks_exact_mut(n).zip(packed.places()) {
            match self.spec.pooling {
                // No file asks for none.
                Pooling::Mean | Pooling::None => row[first..first + len].fill(1.0 / len as f32),
                Pooling::Cls => row[first] = 1.0,
                Pooling::Last => row[first + len - 1] = 1.0,
            }
        }
        let vectors = tensor(shares, (n_seq, n))?.matmul(hidden)?;
        let lengths = (vectors.sqr()?.sum_keepdim(1)? + 1e-12)?.sqrt()?;
        Ok(vectors.broadcast_div(&lengths)?)
    }
}

impl Pass<'_> {
    fn linear(&self, layer: &Layered, x: &Tensor) -> candle_core::Result<Tensor> {
        let op = Apply(Arc::clone(&layer.linear));
        match self.with.pair(layer.target) {
            Some((a, b)) => x.apply_op3(&a, &b, op),
            None => x.apply_op1(op),
        }
    }
}

fn feed(mlp: &Mlp, pass: &Pass<'_>, x: &Tensor) -> candle_core::Result<Tensor> {
    let up = pass.linear(&mlp.up, x)?;
    let inner = match &mlp.gate {
        Some(gate) => pass.linear(gate, x)?.apply_op2(&up, Gate(mlp.activation))?,
        None => up.apply_op1(Activate(mlp.activation))?,
    };
    pass.linear(&mlp.down, &inner)
}

fn normed(norm: &Option<Arc<NormWeights>>, x: Tensor) -> candle_core::Result<Tensor> {
    match norm {
        Some(norm) => x.apply_op1(Norm(Arc::clone(norm))),
        None => Ok(x),
    }
}

/// Makes the angles of all rows; the length of a head is filled in by the layer.
fn rotation(rope: &Rope, packed: &Packed) -> Rotate {
    let n_half = rope.n_rot() / 2;
    let mut cos = vec![0.0; packed.tokens.len() * n_half];
    let mut sin = cos.clone();
    for (first, n) in packed.places() {
        for pos in 0..n {
            let part = (first + pos) * n_half..(first + pos + 1) * n_half;
            rope.angles(pos as u32, &mut cos[part.clone()], &mut sin[part]);
        }
    }
    Rotate { style: rope.style(), head_dim: 0, cos: cos.into(), sin: sin.into() }
}
