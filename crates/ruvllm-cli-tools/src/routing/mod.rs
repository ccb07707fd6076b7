//! Routers on the command line: their folder, embeddings of texts, and outcomes.

pub mod expect;
pub mod outcomes;
use std::path::PathBuf;

use clap::Args;
use ruvllm_engine::LoadOptions;
use ruvllm_gguf::GgufFile;
use ruvllm_learning::{EmbedderName, ModelEmbedder, ModelRouter};
use ruvllm_router::{Embedder, Model, Rows};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::{Error, Result};

/// The router's folder.
#[derive(Args, Clone, Debug)]
pub struct RouterArgs {
    /// The folder of the router [default: router in RUVLLM_HOME]
    #[arg(long, value_name = "DIR")]
    pub router: Option<PathBuf>,
}

impl RouterArgs {
    /// Returns the folder.
    pub fn folder(&self, app: &App) -> PathBuf {
        self.router.clone().unwrap_or_else(|| app.settings.home.join("router"))
    }

    /// Reads the router.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub fn open(&self, app: &App) -> Result<ModelRouter> {
        let folder = self.folder(app);
        if !folder.is_dir() {
            let line = format!("there is no router in {}; 'ruvllm route train' makes one", folder.display());
            return Err(Error::failure(line));
        }
        Ok(ModelRouter::open(&folder)?)
    }
}

/// Makes the embeddings of texts, each told to `each`.
///
/// # Errors
/// The model cannot be had, or does not fit; or what `each` returns.
pub fn embed_all<'a>(
    app: &App,
    embedder: &EmbedderName,
    texts: impl ExactSizeIterator<Item = &'a str>,
    each: &mut dyn FnMut(Vec<f32>) -> Result<()>,
) -> Result<()> {
    let EmbedderName::Model(name, dim) = embedder else {
        return texts.filter_map(|text| embedder.embed(text)).try_for_each(each);
    };
    let path = app.store().locate(name, true)?;
    let options = LoadOptions { n_threads: app.settings.threads(None), ..LoadOptions::default() };
    let mut engine = app.load(&path, &options)?;
    let mut own = ModelEmbedder::new(&mut engine);
    if own.dim() != *dim {
        let line =
            format!("the vectors of '{name}' have {} values; {dim} are needed: train the router anew", own.dim());
        return Err(Error::failure(line));
    }
    let bar = app.ui.steps_bar("embedding", texts.len() as u64);
    for text in texts {
        each(own.embed(text).map_err(Error::failure)?)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

/// Values of hashed words where no model makes embeddings.
const HASHED: usize = 256;

/// Model that makes embeddings.
#[derive(Args, Clone, Debug)]
pub struct EmbedderArgs {
    /// What makes embeddings: a model, by name or path, such as minilm:l6, or 'hashed': words alone, no model
    #[arg(long, value_name = "NAME|PATH", default_value = "hashed")]
    embedder: String,
}

impl EmbedderArgs {
    /// Returns the embedder.
    ///
    /// # Errors
    /// The model's file cannot be had or says no width.
    pub fn name(&self, app: &App) -> Result<EmbedderName> {
        if self.embedder == "hashed" {
            return Ok(EmbedderName::Hashed(HASHED));
        }
        let path = app.store().locate(&self.embedder, true)?;
        let file = GgufFile::open(&path)?;
        let arch = file.metadata().str("general.architecture")?.unwrap_or_default().to_owned();
        let width = file.metadata().u32(&format!("{arch}.embedding_length"))?;
        let width = width.ok_or_else(|| Error::failure(format_args!("{}: it says no width", path.display())))?;
        Ok(EmbedderName::Model(self.embedder.clone(), width as usize))
    }
}

/// Returns for each model alone its mean quality and cost.
pub fn alone_json(models: &[Model], qualities: &Rows) -> Vec<Value> {
    let n = qualities.len() as f64;
    let row = |(i, model): (usize, &Model)| {
        let quality = qualities.iter().map(|row| f64::from(row[i])).sum::<f64>() / n;
        json!({ "name": model.name, "quality": quality, "cost": model.cost })
    };
    models.iter().enumerate().map(row).collect()
}
