//! `ruvllm route train` and `eval`: a router from outcomes, and what it reaches on others.

use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::OutputArgs;
use ruvllm_cli_tools::check;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{print, print_json, print_line, table};
use ruvllm_cli_tools::routing::expect::{Lesson, expect};
use ruvllm_cli_tools::routing::outcomes::{self, Grouping};
use ruvllm_cli_tools::routing::{EmbedderArgs, RouterArgs, alone_json, embed_all};
use ruvllm_cli_tools::values::fraction;
use ruvllm_learning::{EmbedderName, ModelRouter, NearestIndex};
use ruvllm_router::evaluate::{Answers, Spent, calibration_error, spent, weighing_that_keeps};
use ruvllm_router::roles::{RoleClassifier, RoleOptions, examples};
use ruvllm_router::routes::SemanticRoutes;
use ruvllm_router::{Model, Progress, Rows, TrainOptions, Weighing};
use serde::Deserialize;
use serde_json::{Value, json};

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
    /// Take the cheapest model that is expected to be at most this much below the best [default: 0.05]
    #[arg(long, value_name = "DROP", value_parser = fraction, conflicts_with = "keep")]
    within: Option<f32>,
    /// Save what can be saved at this share of the best model's quality, as found by learning from parts of the outcomes
    #[arg(long, value_name = "SHARE", value_parser = fraction)]
    keep: Option<f32>,
    /// What belongs together, and is never both learned from and calibrated by
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Grouping::Template)]
    groups: Grouping,
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

/// In how many parts outcomes are divided to find what to weigh by.
const N_PARTS: usize = 5;

impl TrainArgs {
    pub(super) fn run(&self, app: &App) -> Result<()> {
        let outcomes = outcomes::read(&self.outcomes, self.groups)?;
        let routes = self.routes.as_deref().map(read_examples).transpose()?;
        let folder = self.router.folder(app);
        check::writable_folder(&folder)?;
        let embedder = self.embedder.name(app)?;
        let embeddings = outcomes.embeddings(app, &embedder)?;
        let options = TrainOptions { seed: self.seed, ..TrainOptions::default() };
        let lesson = Lesson { all: outcomes.for_training(&embeddings), outcomes: &outcomes };
        let n_lessons = if self.keep.is_some() { 1 + N_PARTS } else { 1 };
        let bar = app.ui.steps_bar("training", (n_lessons * options.n_members) as u64);
        let mut n_members = 0;
        let mut each = |told: &Progress| {
            if told.epoch == 1 {
                bar.set_position(n_members);
                n_members += 1;
            }
        };
        let weighing = match (self.keep, self.within) {
            (Some(share), _) => {
                let expected = lesson.left_out(N_PARTS, &options, &mut each)?;
                weighing_that_keeps(&expected, &outcomes.answers()?, share.into()).map_err(Error::failure)?
            }
            (None, within) => Weighing::Within(within.unwrap_or(0.05)),
        };
        let everything: Vec<usize> = (0..lesson.all.len()).collect();
        let (selector, costs) = (lesson.selector(&everything, &options, &mut each)?, lesson.costs(&everything)?);
        bar.finish_and_clear();
        let (n_values, n_used) = selector.n_parameters();
        let router = ModelRouter {
            models: outcomes.models.clone(),
            weighing,
            roles: Some(roles(app, &embedder)?),
            routes: routes.map(|examples| embed_routes(app, &embedder, &examples)).transpose()?,
            selector,
            costs,
            embedder,
        };
        router.save(&folder)?;
        let (n, n_groups) = (outcomes.prompts.len(), outcomes.n_groups());
        if self.output.json {
            let models = router.models.iter().map(|model| json!({ "name": model.name, "cost": model.cost }));
            return print_json(&json!({
                "router": folder, "outcomes": n, "groups": n_groups, "models": models.collect::<Vec<_>>(),
                "weighing": weighing, "values": n_values, "values_not_zero": n_used,
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

/// Reads the examples of named routes.
fn read_examples(path: &Path) -> Result<Vec<Example>> {
    let text = ruvllm_cli_tools::text_files::read_text(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let read = |(i, line): (usize, &str)| {
        serde_json::from_str::<Example>(line)
            .map_err(|error| Error::failure(format_args!("{} line {}: {error}", path.display(), i + 1)))
    };
    lines.map(read).collect()
}

/// Makes routes of examples, and fits their thresholds.
fn embed_routes(app: &App, embedder: &EmbedderName, examples: &[Example]) -> Result<SemanticRoutes<NearestIndex>> {
    const BEFORE: f32 = 0.5;
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
fn spent_json(models: &[Model], reached: &Spent) -> Value {
    let shares: serde_json::Map<String, Value> =
        models.iter().zip(&reached.shares).map(|(model, share)| (model.name.clone(), json!(share))).collect();
    json!({
        "weighing": reached.weighing, "quality": reached.quality, "cost": reached.cost, "shares": shares,
        "quality_of_best": reached.quality_of_best, "saved_of_best": reached.saved_of_best,
    })
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
        let (router, outcomes) = (self.router.open(app)?, outcomes::read(&self.outcomes, Grouping::Template)?);
        if !outcomes.names().iter().eq(router.selector.models().iter()) {
            let line =
                format!("the router knows the models {:?}, not {:?}", router.selector.models(), outcomes.names());
            return Err(Error::failure(line));
        }
        let embeddings = outcomes.embeddings(app, &router.embedder)?;
        // Costs by the router where it chooses, those of this file where they are added up: what was really paid.
        let (models, actual) = (&outcomes.models, outcomes.answers()?);
        let mut expected = Answers { qualities: Rows::new(models.len()), costs: Rows::new(models.len()) };
        for outcome in outcomes.for_training(&embeddings) {
            let (quality, cost) = expect(&router.selector, router.costs.as_ref(), &router.models, &outcome.query)?;
            expected.qualities.push(&quality).and_then(|()| expected.costs.push(&cost)).map_err(Error::failure)?;
        }
        let reached = spent(&expected, &actual, &[router.weighing]).map_err(Error::failure)?.remove(0);
        let reached = spent_json(models, &reached);
        let alone = alone_json(models, &actual.qualities);
        if self.output.json {
            return print_json(&json!({
                "n": outcomes.prompts.len(), "groups": outcomes.n_groups(), "alone": alone, "router": reached,
                "calibration_error": calibration_json(models, &expected.qualities, &actual.qualities),
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
