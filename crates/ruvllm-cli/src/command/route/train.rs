//! `ruvllm route train` and `eval`: a router from outcomes, and what it reaches on others.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm_engine::{EmbedderName, ModelRouter, NearestIndex};
use ruvllm_gguf::GgufFile;
use ruvllm_router::evaluate::{calibration_error, spent};
use ruvllm_router::roles::{RoleClassifier, RoleOptions, examples};
use ruvllm_router::routes::SemanticRoutes;
use ruvllm_router::{Model, Rows, Selector, TrainOptions, Weighing, features};
use serde::Deserialize;
use serde_json::{Value, json};

use super::outcomes::{self, Outcomes};
use super::{RouterArgs, embed_all};
use crate::args::{OutputArgs, fraction};
use crate::command::App;
use crate::error::{Error, Result};
use crate::output::{print, print_json, print_line, table};

/// Values of hashed words where no model makes embeddings.
const HASHED: usize = 256;

/// What makes embeddings.
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

/// Options of `ruvllm route train`.
#[derive(Args, Debug)]
pub(super) struct TrainArgs {
    /// The outcomes, as 'ruvllm route collect' writes them
    #[arg(long, value_name = "FILE")]
    outcomes: PathBuf,
    /// Named routes: lines {"route": NAME, "text": EXAMPLE}, and {"text": ...} for what belongs to none
    #[arg(long, value_name = "FILE")]
    routes: Option<PathBuf>,
    #[command(flatten)]
    embedder: EmbedderArgs,
    /// Take the cheapest model that is expected to be at most this much below the best
    #[arg(long, value_name = "DROP", default_value_t = 0.05, value_parser = fraction)]
    within: f32,
    /// Seed of the training
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    router: RouterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Options of `ruvllm route eval`.
#[derive(Args, Debug)]
pub(super) struct EvalArgs {
    /// Outcomes that the router did not learn from
    #[arg(long, value_name = "FILE")]
    outcomes: PathBuf,
    #[command(flatten)]
    router: RouterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Trains a selector with a progress bar.
///
/// # Errors
/// Too little to learn from.
pub fn train_selector(app: &App, outcomes: &Outcomes, embeddings: &Rows, options: &TrainOptions) -> Result<Selector> {
    let bar = app.ui.steps_bar("training", (options.n_members * options.n_epochs) as u64);
    let selector = Selector::train(&outcomes.names(), &outcomes.for_training(embeddings), options, |told| {
        bar.set_position((told.member * told.n_epochs + told.epoch) as u64);
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    selector.map_err(Error::failure)
}

impl TrainArgs {
    pub(super) fn run(&self, app: &App) -> Result<()> {
        let outcomes = outcomes::read(&self.outcomes)?;
        let embedder = self.embedder.name(app)?;
        let embeddings = outcomes.embeddings(app, &embedder)?;
        let options = TrainOptions { seed: self.seed, ..TrainOptions::default() };
        let selector = train_selector(app, &outcomes, &embeddings, &options)?;
        let (n_values, n_used) = selector.n_parameters();
        let router = ModelRouter {
            models: outcomes.models.clone(),
            weighing: Weighing::Within(self.within),
            roles: Some(roles(app, &embedder)?),
            routes: self.routes.as_deref().map(|path| read_routes(app, &embedder, path)).transpose()?,
            selector,
            embedder,
        };
        let folder = self.router.folder(app);
        router.save(&folder)?;
        let (n, n_groups) = (outcomes.prompts.len(), outcomes.n_groups());
        if self.output.json {
            let models = router.models.iter().map(|model| json!({ "name": model.name, "cost": model.cost }));
            return print_json(&json!({
                "router": folder, "outcomes": n, "groups": n_groups, "models": models.collect::<Vec<_>>(),
                "values": n_values, "values_not_zero": n_used,
                "routes": router.routes.as_ref().map_or(0, |routes| routes.routes().count()),
            }));
        }
        print_line(&format!("learned from {n} outcomes in {n_groups} groups: {}", folder.display()))
    }
}

/// Learns the roles from the examples of the crate.
fn roles(app: &App, embedder: &EmbedderName) -> Result<RoleClassifier> {
    let examples = examples();
    let mut rows = Rows::new(embedder.dim());
    let texts = examples.iter().map(|example| example.prompt.as_str());
    embed_all(app, embedder, texts, &mut |vector| rows.push(&vector).map_err(Error::failure))?;
    RoleClassifier::train(&examples, &rows, &RoleOptions::default()).map_err(Error::failure)
}

/// An example of a route.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    route: Option<String>,
    text: String,
}

/// Reads named routes, and fits their thresholds.
fn read_routes(app: &App, embedder: &EmbedderName, path: &Path) -> Result<SemanticRoutes<NearestIndex>> {
    const BEFORE: f32 = 0.5;
    let text = crate::command::read_text(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let read = |(i, line): (usize, &str)| {
        serde_json::from_str::<Example>(line)
            .map_err(|error| Error::failure(format_args!("{} line {}: {error}", path.display(), i + 1)))
    };
    let examples: Vec<Example> = lines.map(read).collect::<Result<_>>()?;
    let mut routes = SemanticRoutes::new(NearestIndex::new(embedder.dim()).map_err(Error::failure)?);
    let (mut others, mut at) = (Rows::new(embedder.dim()), 0);
    embed_all(app, embedder, examples.iter().map(|example| example.text.as_str()), &mut |vector| {
        let added = match &examples[at].route {
            None => others.push(&vector),
            Some(name) => {
                let is_new = routes.routes().all(|(known, ..)| known != name);
                let known = if is_new { routes.add_route(name, BEFORE) } else { Ok(()) };
                known.and_then(|()| routes.add_example(name, &vector).map(drop))
            }
        };
        at += 1;
        added.map_err(Error::failure)
    })?;
    routes.fit_thresholds(&others).map_err(Error::failure)?;
    Ok(routes)
}

/// What a way of choosing reached, as JSON.
pub fn spent_json(models: &[Model], expected: &Rows, actual: &Rows, weighings: &[Weighing]) -> Result<Vec<Value>> {
    let all = spent(models, expected, actual, weighings).map_err(Error::failure)?;
    let row = |reached: &ruvllm_router::evaluate::Spent| {
        let shares: serde_json::Map<String, Value> =
            models.iter().zip(&reached.shares).map(|(model, share)| (model.name.clone(), json!(share))).collect();
        json!({
            "weighing": reached.weighing, "quality": reached.quality, "cost": reached.cost, "shares": shares,
            "quality_of_best": reached.quality_of_best, "saved_of_best": reached.saved_of_best,
        })
    };
    Ok(all.iter().map(row).collect())
}

/// Returns for each model alone its mean quality and cost.
pub fn alone_json(models: &[Model], actual: &Rows) -> Vec<Value> {
    let n = actual.len() as f64;
    let row = |(i, model): (usize, &Model)| {
        let quality = actual.iter().map(|row| f64::from(row[i])).sum::<f64>() / n;
        json!({ "name": model.name, "quality": quality, "cost": model.cost })
    };
    models.iter().enumerate().map(row).collect()
}

/// Returns how far expected qualities are off, by model.
pub fn calibration_json(models: &[Model], expected: &Rows, actual: &Rows) -> Value {
    let of = |(i, model): (usize, &Model)| {
        let pairs: Vec<(f32, f32)> = expected.iter().zip(actual.iter()).map(|(p, y)| (p[i], y[i])).collect();
        (model.name.clone(), json!(calibration_error(&pairs)))
    };
    Value::Object(models.iter().enumerate().map(of).collect())
}

impl EvalArgs {
    pub(super) fn run(&self, app: &App) -> Result<()> {
        let (router, outcomes) = (self.router.open(app)?, outcomes::read(&self.outcomes)?);
        if !outcomes.names().iter().eq(router.selector.models().iter()) {
            let line =
                format!("the router knows the models {:?}, not {:?}", router.selector.models(), outcomes.names());
            return Err(Error::failure(line));
        }
        let embeddings = outcomes.embeddings(app, &router.embedder)?;
        let (mut expected, actual) = (Rows::new(router.models.len()), outcomes.actual()?);
        for (prompt, embedding) in outcomes.prompts.iter().zip(embeddings.iter()) {
            let query = [&features::of(prompt)[..], embedding].concat();
            let prediction = router.selector.predict(&query).map_err(Error::failure)?;
            expected.push(&prediction.qualities).map_err(Error::failure)?;
        }
        // The costs of this file: those that were really paid.
        let models = &outcomes.models;
        let reached = spent_json(models, &expected, &actual, &[router.weighing])?.remove(0);
        let alone = alone_json(models, &actual);
        if self.output.json {
            return print_json(&json!({
                "n": outcomes.prompts.len(), "groups": outcomes.n_groups(), "alone": alone, "router": reached,
                "calibration_error": calibration_json(models, &expected, &actual),
            }));
        }
        let number = |value: &Value, digits: usize| format!("{:.digits$}", value.as_f64().unwrap_or_default());
        let mut rows = vec![["", "QUALITY", "COST"].map(str::to_owned).to_vec()];
        rows.extend(alone.iter().map(|model| {
            let name = format!("{} alone", model["name"].as_str().unwrap_or_default());
            vec![name, number(&model["quality"], 3), number(&model["cost"], 2)]
        }));
        rows.push(vec!["router".to_owned(), number(&reached["quality"], 3), number(&reached["cost"], 2)]);
        print(&table(&rows, &[1, 2]))?;
        print_line(&format!(
            "{} % of the best model's quality with {} % of its cost saved",
            number(&json!(100.0 * reached["quality_of_best"].as_f64().unwrap_or_default()), 1),
            number(&json!(100.0 * reached["saved_of_best"].as_f64().unwrap_or_default()), 1),
        ))
    }
}
