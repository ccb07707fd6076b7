//! `ruvllm detect --model M`: which quantisation of a model suits this machine.

use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::describe::quantization;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::hub::{Header, open_header};
use ruvllm_cli_tools::machine::Machine;
use ruvllm_cli_tools::output::{bytes, count, print, print_json, table};
use ruvllm_convert::quantized_sizes;
use ruvllm_engine::{KvPolicy, read_bandwidth};
use ruvllm_gguf::{GgmlType, GgufFile};
use ruvllm_kvcache::{KvLayout, LayerKv};
use ruvllm_model::{ExpansionSpec, LatentAttentionSpec, MixerSpec, ModelSpec};
use serde_json::{Value, json};

use crate::commands::detect::costs::{COSTS, Cost, KL_PAGE, PERPLEXITY_PAGE, READ_SHARE, READ_SHARE_PAGE};

/// Share of the free memory that weights and context may take.
const MEMORY_SHARE: f64 = 0.9;
/// Memory for everything else: buffers, tokenizer, the program.
const OTHER_BYTES: u64 = 200_000_000;
/// Context that a fitting type should have room for, unless somebody says another one.
const WANTED_CONTEXT: usize = 8192;
/// The shortest context that is looked at.
const SHORT_CONTEXT: usize = 512;
/// The largest buffer whose reading is timed; more than any cache holds.
const TIMED_BYTES: usize = 256 << 20;

/// Facts of a type that a model could have.
struct Choice {
    /// Name of the type, or `this file`.
    name: String,
    weight_bytes: u64,
    /// The longest context that fits beside the weights; 0 if none does.
    n_ctx_max: Option<usize>,
    /// Tokens a second, about.
    tps: f64,
    /// Costs in quality, where they are known.
    cost: Option<Cost>,
    /// Whether the file has fewer bits than this, so that another source is needed.
    needs_source: bool,
}

/// A model beside a machine.
struct Weighed {
    header: Header,
    spec: ModelSpec,
    usable: Option<u64>,
    read_gbps: f64,
    /// Context that is wanted.
    n_ctx: usize,
    choices: Vec<Choice>,
}

/// Prints which types of a model fit, and what they cost.
///
/// # Errors
/// The model is nowhere, or is of an architecture that is not run.
pub fn run(app: &App, name: &str, n_ctx: Option<usize>, as_json: bool) -> Result<()> {
    let header = open_header(app, name, true)?;
    let spec = ModelSpec::read(&header.file, None).map_err(Error::failure)?;
    let n_ctx = n_ctx.unwrap_or(WANTED_CONTEXT).min(spec.n_ctx_train.max(1));
    let usable = Machine::detect().usable_bytes();
    let timed = usize::try_from(header.file.tensor_bytes()).unwrap_or(usize::MAX).clamp(1 << 24, TIMED_BYTES);
    let read_gbps = read_bandwidth(app.settings.threads(None), timed);
    let mut weighed = Weighed { header, spec, usable, read_gbps, n_ctx, choices: Vec::new() };
    weighed.weigh()?;
    if as_json { weighed.print_json() } else { weighed.print_text() }
}

impl Weighed {
    fn weigh(&mut self) -> Result<()> {
        let file = &self.header.file;
        let own: Vec<(String, u64)> = file.tensors().map(|t| (t.name.clone(), t.n_bytes() as u64)).collect();
        let own_bytes: u64 = own.iter().map(|(_, n)| n).sum();
        let is_small = file.tensors().any(|t| !matches!(t.ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16));
        let file_type = quantization(file);
        let own_cost = COSTS.iter().find(|cost| cost.recipe.name() == file_type).copied();
        let mut choices = vec![self.choice(format!("this file ({file_type})"), &own, own_cost, false)];
        for cost in COSTS.iter().filter(|cost| cost.recipe.name() != file_type) {
            let sizes = quantized_sizes(file, cost.recipe)?;
            let needs_source = is_small && sizes.iter().map(|(_, n)| n).sum::<u64>() > own_bytes;
            choices.push(self.choice(cost.recipe.name().to_owned(), &sizes, Some(*cost), needs_source));
        }
        choices.sort_by_key(|choice| std::cmp::Reverse(choice.weight_bytes));
        self.choices = choices;
        Ok(())
    }

    fn choice(&self, name: String, sizes: &[(String, u64)], cost: Option<Cost>, needs_source: bool) -> Choice {
        let weight_bytes: u64 = sizes.iter().map(|(_, n)| n).sum();
        let read_bytes = sizes.iter().map(|(name, n)| self.read_per_token(name, *n)).sum::<f64>().max(1.0);
        let n_ctx_max = self.usable.map(|usable| self.context_within(usable, weight_bytes));
        Choice {
            name,
            weight_bytes,
            n_ctx_max,
            tps: READ_SHARE * self.read_gbps * 1e9 / read_bytes,
            cost,
            needs_source,
        }
    }

    /// Returns how many bytes of a tensor a token reads: of embeddings a row, of experts those that are used.
    fn read_per_token(&self, name: &str, n_bytes: u64) -> f64 {
        let metadata = self.header.file.metadata();
        let number = |key: &str| metadata.u32(&format!("{}.{key}", self.spec.arch)).ok().flatten();
        if name == "token_embd.weight" && self.header.file.tensor("output.weight").is_some() {
            return 0.0;
        }
        match (number("expert_used_count"), number("expert_count")) {
            (Some(used), Some(n)) if n > 0 && name.contains("_exps.") => {
                n_bytes as f64 * f64::from(used) / f64::from(n)
            }
            _ => n_bytes as f64,
        }
    }

    /// Returns the longest context, in halves of the trained one, whose cache fits beside the weights.
    fn context_within(&self, usable: u64, weight_bytes: u64) -> usize {
        let room = (usable as f64 * MEMORY_SHARE) as u64;
        let fits = |n_ctx: usize| weight_bytes + self.kv_bytes(n_ctx) + OTHER_BYTES <= room;
        let halves =
            std::iter::successors(Some(self.spec.n_ctx_train), |n| Some(n / 2).filter(|n| *n >= SHORT_CONTEXT));
        halves.chain([self.n_ctx]).filter(|n_ctx| fits(*n_ctx)).max().unwrap_or(0)
    }

    fn kv_bytes(&self, n_ctx: usize) -> u64 {
        let layout = KvLayout { layers: kv_layers(&self.spec) };
        match layout.layers.is_empty() {
            true => 0,
            false => layout.memory_for(KvPolicy::F16.formats(), KvLayout::blocks_for(n_ctx)) as u64,
        }
    }

    /// Returns the choice with the most bits that has room for the wanted context; of sources that are not here, none.
    fn best(&self) -> Option<&Choice> {
        self.choices.iter().find(|choice| choice.n_ctx_max.is_some_and(|n| n >= self.n_ctx) && !choice.needs_source)
    }

    fn print_json(&self) -> Result<()> {
        let Weighed { header, spec, usable, read_gbps, n_ctx, choices } = self;
        let choices = choices.iter().map(|choice| {
            json!({
                "type": choice.name,
                "weight_bytes": choice.weight_bytes,
                "context_max": choice.n_ctx_max,
                "fits": choice.n_ctx_max.map(|n| n >= *n_ctx),
                "decode_tps": choice.tps,
                "perplexity_percent": choice.cost.and_then(|cost| cost.perplexity_percent),
                "mean_kl": choice.cost.and_then(|cost| cost.mean_kl),
                "budget_mean_kl": choice.cost.and_then(|cost| cost.budget_kl),
                "needs_source": choice.needs_source,
            })
        });
        print_json(&json!({
            "model": header.place,
            "remote": header.is_remote,
            "parameters": n_params(&header.file),
            "quantization": quantization(&header.file),
            "context_trained": spec.n_ctx_train,
            "context": n_ctx,
            "context_bytes": self.kv_bytes(*n_ctx),
            "memory_usable_bytes": usable,
            "read_gbps": read_gbps,
            "types": choices.collect::<Vec<Value>>(),
            "best": self.best().map(|choice| &choice.name),
            "sources": { "perplexity_percent": PERPLEXITY_PAGE, "mean_kl": KL_PAGE, "decode_tps": READ_SHARE_PAGE },
        }))
    }

    fn print_text(&self) -> Result<()> {
        let (file, n_ctx) = (&self.header.file, self.n_ctx);
        let usable = self.usable.map_or_else(|| "unknown".to_owned(), bytes);
        let facts = [
            ("model", self.header.place.clone()),
            ("parameters", format!("{} ({})", count(n_params(file)), quantization(file))),
            (
                "context",
                format!(
                    "{n_ctx} tokens take {} (f16); trained with {}",
                    bytes(self.kv_bytes(n_ctx)),
                    self.spec.n_ctx_train
                ),
            ),
            ("memory", format!("{usable} free; reads {:.0} GB/s", self.read_gbps)),
        ];
        let mut text = table(&facts.map(|(key, value)| vec![key.to_owned(), value]), &[]);
        let mut rows = vec![
            ["TYPE", "WEIGHTS", "LONGEST CONTEXT", "TOKENS/S", "PERPLEXITY", "MEAN KL", "BY BUDGET", ""]
                .map(str::to_owned)
                .to_vec(),
        ];
        rows.extend(self.choices.iter().map(row));
        text += &format!("\n{}", table(&rows, &[1, 2, 3, 4, 5, 6]));
        text += &match self.best() {
            Some(best) => format!("\nbest for {n_ctx} tokens here: {}\n", best.name),
            None if self.usable.is_none() => {
                "\nthe system does not tell its memory, so no type can be advised\n".to_owned()
            }
            None => format!(
                "\nnone fits with {n_ctx} tokens; ask for a shorter context with --ctx, or take a smaller model\n"
            ),
        };
        text += &format!(
            "\nTokens a second: {READ_SHARE} of the read bandwidth ({READ_SHARE_PAGE}), for one answer and a short context.\n"
        );
        text += &format!(
            "Perplexity: change measured on Qwen2.5-Coder 0.5B ({PERPLEXITY_PAGE}); another model loses more or less.\n"
        );
        text += &format!(
            "Mean KL: divergence in nats measured on SmolLM2 135M with an importance matrix, of the recipe and of a file of its size by \
             'ruvllm quantize --budget' ({KL_PAGE}). '-' was not measured.\n"
        );
        print(&text)
    }
}

fn row(choice: &Choice) -> Vec<String> {
    let context = match choice.n_ctx_max {
        None => "unknown".to_owned(),
        Some(0) => "does not fit".to_owned(),
        Some(n) => n.to_string(),
    };
    let told = |figure: Option<f64>, text: fn(f64) -> String| figure.map_or_else(|| "-".to_owned(), text);
    let perplexity = told(choice.cost.and_then(|cost| cost.perplexity_percent), |percent| format!("{percent:+.2} %"));
    let kl = |figure: Option<f64>| told(figure, |nats| format!("{nats:.4}"));
    let note = if choice.needs_source { "from a source with more bits" } else { "" };
    vec![
        choice.name.clone(),
        bytes(choice.weight_bytes),
        context,
        format!("{:.0}", choice.tps),
        perplexity,
        kl(choice.cost.and_then(|cost| cost.mean_kl)),
        kl(choice.cost.and_then(|cost| cost.budget_kl)),
        note.to_owned(),
    ]
}

fn n_params(file: &GgufFile) -> u64 {
    file.tensors().map(|tensor| tensor.n_elements() as u64).sum()
}

/// Returns the shapes of the keys and values that a model's layers keep.
fn kv_layers(spec: &ModelSpec) -> Vec<LayerKv> {
    let shape = |mixer: &MixerSpec| match mixer {
        MixerSpec::Attention(own) | MixerSpec::AttentionAndMamba2(own, _) => {
            Some(LayerKv { n_kv_heads: own.n_kv_heads, k_dim: own.k_dim, v_dim: own.v_dim })
        }
        MixerSpec::LatentAttention(own) => Some(latent(own)),
        MixerSpec::ShortConv(_) | MixerSpec::Mamba(_) | MixerSpec::Mamba2(_) => None,
    };
    spec.layers.iter().filter_map(|layer| shape(&layer.mixer)).collect()
}

fn latent(spec: &LatentAttentionSpec) -> LayerKv {
    let n_latent = spec.latent.n_out();
    match spec.expansion {
        ExpansionSpec::Joint(_) => {
            LayerKv { n_kv_heads: spec.n_heads, k_dim: spec.n_nope + spec.n_rot, v_dim: spec.v_dim }
        }
        ExpansionSpec::Absorbed { .. } => LayerKv { n_kv_heads: 1, k_dim: n_latent + spec.n_rot, v_dim: n_latent },
    }
}
