//! `ruvllm eval routing`: selectors and baselines, cross-validated by groups.

use std::path::PathBuf;

use clap::Args;
use ruvllm_router::evaluate::{bootstrap, calibration_error, cost_quality, grouped_folds, spent};
use ruvllm_router::{Link, Logistic, Model, Neighbours, Outcome, Rows, Selector, TrainOptions, Weighing};
use serde_json::{Value, json};

use super::chart::{self, Line};
use crate::args::{OutputArgs, count};
use crate::command::App;
use crate::command::route::outcomes::{self, Outcomes};
use crate::command::route::train::{EmbedderArgs, alone_json};
use crate::error::{Error, Result};
use crate::output::{print, print_json, print_line, table};

/// Options of `ruvllm eval routing`.
#[derive(Args, Debug)]
pub(super) struct RoutingArgs {
    /// Outcomes: as 'ruvllm route collect' writes them, or lines {"prompt", "weak", "strong", "subject"}
    #[arg(value_name = "FILE")]
    outcomes: PathBuf,
    #[command(flatten)]
    embedder: EmbedderArgs,
    /// Into how many parts the groups are divided; each is asked of what learned from the others
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count::<2, 100>)]
    folds: usize,
    /// How they are divided
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Give each query the qualities of another: nothing may be found then
    #[arg(long)]
    null: bool,
    /// Draws of the bootstrap over groups
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = count::<20, 100_000>)]
    draws: usize,
    /// Write the curves of quality over cost to this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// What is learned from and asked.
struct Data {
    outcomes: Outcomes,
    all: Vec<Outcome>,
    embeddings: Rows,
    actual: Rows,
}

/// Settings that a baseline chooses among, within what it learns from.
const N_VARIANTS: usize = 4;
const K: [usize; N_VARIANTS] = [5, 10, 30, 100];
const L2: [f32; N_VARIANTS] = [2e-4, 6e-4, 2e-3, 6e-3];

/// Expected qualities for the rows that are asked, by the rows that are learned from and a variant.
type Learner<'a> = dyn Fn(&Data, &[usize], &[usize], usize) -> Result<Rows> + 'a;

fn neighbours(data: &Data, learned: &[usize], asked: &[usize], variant: usize) -> Result<Rows> {
    let known = Neighbours::new(&data.embeddings.pick(learned), &data.actual.pick(learned)).map_err(Error::failure)?;
    rows(data, asked.iter().map(|&i| known.predict(data.embeddings.row(i), K[variant])))
}

fn logistic(data: &Data, learned: &[usize], asked: &[usize], variant: usize) -> Result<Rows> {
    let (inputs, targets) = (data.embeddings.pick(learned), data.actual.pick(learned));
    let fit = Logistic::fit(&inputs, &targets, Link::Sigmoid, L2[variant]).map_err(Error::failure)?;
    rows(data, asked.iter().map(|&i| fit.predict(data.embeddings.row(i))))
}

fn selector(data: &Data, learned: &[usize], asked: &[usize], _: usize) -> Result<Rows> {
    let outcomes: Vec<Outcome> = learned.iter().map(|&i| data.all[i].clone()).collect();
    let names = data.outcomes.names();
    let go_on = |_: &ruvllm_router::Progress| std::ops::ControlFlow::Continue(());
    let selector = Selector::train(&names, &outcomes, &TrainOptions::default(), go_on).map_err(Error::failure)?;
    let predicted: Vec<Vec<f32>> = asked
        .iter()
        .map(|&i| selector.predict(&data.all[i].query).map(|prediction| prediction.qualities))
        .collect::<std::result::Result<_, _>>()
        .map_err(Error::failure)?;
    rows(data, predicted.into_iter())
}

fn rows(data: &Data, all: impl Iterator<Item = Vec<f32>>) -> Result<Rows> {
    let mut rows = Rows::new(data.actual.width());
    for row in all {
        rows.push(&row).map_err(Error::failure)?;
    }
    Ok(rows)
}

/// The rows of `of` inside and outside a fold.
fn divide(of: &[usize], folds: &[usize], fold: usize) -> (Vec<usize>, Vec<usize>) {
    let (inside, outside): (Vec<_>, Vec<_>) = of.iter().zip(folds).partition(|(_, own)| **own == fold);
    (inside.into_iter().map(|(i, _)| *i).collect(), outside.into_iter().map(|(i, _)| *i).collect())
}

/// The loss of expected qualities.
fn loss(data: &Data, asked: &[usize], expected: &Rows) -> f64 {
    let mut loss = 0.0;
    for (&i, row) in asked.iter().zip(expected.iter()) {
        for (&y, p) in data.actual.row(i).iter().zip(row) {
            let (y, p) = (f64::from(y), f64::from(p.clamp(0.01, 0.99)));
            loss -= y * p.ln() + (1.0 - y) * (1.0 - p).ln();
        }
    }
    loss
}

/// The variant of the least loss in a cross-validation within `of`.
fn best_variant(data: &Data, of: &[usize], learner: &Learner<'_>) -> Result<usize> {
    let groups: Vec<u64> = of.iter().map(|&i| data.outcomes.groups[i]).collect();
    let folds = grouped_folds(&groups, 3, 7);
    let mut best = (0, f64::INFINITY);
    for variant in 0..N_VARIANTS {
        let mut sum = 0.0;
        for fold in 0..3 {
            let (asked, learned) = divide(of, &folds, fold);
            if !asked.is_empty() && !learned.is_empty() {
                sum += loss(data, &asked, &learner(data, &learned, &asked, variant)?);
            }
        }
        if sum < best.1 {
            best = (variant, sum);
        }
    }
    Ok(best.0)
}

/// Expected qualities of every row by what did not see its group.
fn cross_validate(data: &Data, folds: &[usize], has_variants: bool, learner: &Learner<'_>) -> Result<Rows> {
    let all: Vec<usize> = (0..folds.len()).collect();
    let mut expected = vec![vec![]; folds.len()];
    for fold in 0..=folds.iter().copied().max().unwrap_or(0) {
        let (asked, learned) = divide(&all, folds, fold);
        let variant = if has_variants { best_variant(data, &learned, learner)? } else { 0 };
        for (i, row) in asked.iter().zip(learner(data, &learned, &asked, variant)?.iter()) {
            expected[*i] = row.to_vec();
        }
    }
    rows(data, expected.into_iter())
}

/// Ways of weighing, from quality alone to cost alone.
fn weighings() -> Vec<Weighing> {
    (0..=50).map(|step| Weighing::Within(step as f32 / 50.0)).collect()
}

impl RoutingArgs {
    pub(super) fn run(&self, app: &App) -> Result<()> {
        let mut outcomes = outcomes::read(&self.outcomes)?;
        let embedder = self.embedder.name(app)?;
        let embeddings = outcomes.embeddings(app, &embedder)?;
        let n = outcomes.prompts.len();
        if self.null {
            let order = grouped_folds(&(0..n as u64).collect::<Vec<_>>(), n, self.seed + 99);
            outcomes.qualities = order.iter().map(|&i| outcomes.qualities[i].clone()).collect();
        }
        if outcomes.n_groups() < self.folds {
            let n_groups = outcomes.n_groups();
            return Err(Error::failure(format_args!(
                "{n_groups} groups in {} parts; ask for fewer --folds",
                self.folds
            )));
        }
        let (all, actual) = (outcomes.for_training(&embeddings), outcomes.actual()?);
        let data = Data { all, embeddings, actual, outcomes };
        let folds = grouped_folds(&data.outcomes.groups, self.folds, self.seed);
        let bar = app.ui.spinner("selector, neighbours, regression");
        let mut tables = vec![("selector", cross_validate(&data, &folds, false, &selector)?)];
        tables.push(("neighbours", cross_validate(&data, &folds, true, &neighbours)?));
        tables.push(("regression", cross_validate(&data, &folds, true, &logistic)?));
        tables.push(("oracle", data.actual.clone()));
        bar.finish_and_clear();
        let report =
            tables.iter().map(|(name, expected)| self.row(&data, name, expected)).collect::<Result<Vec<_>>>()?;
        if let Some(path) = &self.plot {
            chart::write(path, ("mean cost", "mean quality"), &curves(&data, &tables)?)?;
        }
        self.tell(&data, report)
    }

    /// What one way of expecting reaches.
    fn row(&self, data: &Data, name: &str, expected: &Rows) -> Result<Value> {
        let (models, actual) = (&data.outcomes.models, &data.actual);
        let mut row = json!({ "name": name });
        if name != "oracle" {
            let pairs = expected.iter().zip(actual.iter()).flat_map(|(p, y)| p.iter().copied().zip(y.iter().copied()));
            row["calibration_error"] = json!(calibration_error(&pairs.collect::<Vec<_>>()));
        }
        let all = spent(models, expected, actual, &weighings()).map_err(Error::failure)?;
        let good = all.iter().filter(|reached| reached.quality_of_best >= 0.98);
        let best = good.max_by(|a, b| a.saved_of_best.total_cmp(&b.saved_of_best));
        row["saved_at_98"] = json!(best.map(|reached| reached.saved_of_best));
        if models.len() == 2 {
            // The cheaper one is the weak one.
            let (weak, strong) = if models[0].cost <= models[1].cost { (0, 1) } else { (1, 0) };
            let gain = |rows: &Rows| rows.iter().map(|row| row[strong] - row[weak]).collect::<Vec<f32>>();
            let (scores, of) =
                (gain(expected), |model: usize| actual.iter().map(|row| row[model]).collect::<Vec<f32>>());
            let (weak, strong) = (of(weak), of(strong));
            let curve = cost_quality(&scores, &weak, &strong);
            let (low, high) = bootstrap(&data.outcomes.groups, self.draws, 5, |drawn| {
                let pick = |of: &[f32]| drawn.iter().map(|&i| of[i]).collect::<Vec<f32>>();
                cost_quality(&pick(&scores), &pick(&weak), &pick(&strong)).apgr()
            });
            row["apgr"] = json!(curve.apgr());
            row["apgr_95"] = json!([low, high]);
            row["cpt_50"] = json!(curve.cpt(0.5));
        }
        Ok(row)
    }

    fn tell(&self, data: &Data, report: Vec<Value>) -> Result<()> {
        let (models, n, n_groups) = (&data.outcomes.models, data.outcomes.prompts.len(), data.outcomes.n_groups());
        let alone = alone_json(models, &data.actual);
        if self.output.json {
            return print_json(&json!({
                "n": n, "groups": n_groups, "folds": self.folds, "null": self.null, "alone": alone, "table": report,
            }));
        }
        let number = |value: &Value| value.as_f64().map_or_else(String::new, |x| format!("{x:.3}"));
        print_line(&format!("{n} queries in {n_groups} groups, {} folds", self.folds))?;
        for model in &alone {
            print_line(&format!(
                "{} alone: quality {}",
                model["name"].as_str().unwrap_or_default(),
                number(&model["quality"])
            ))?;
        }
        let mut rows = vec![["", "APGR", "CPT 50", "SAVED AT 98 %", "CALIBRATION ERROR"].map(str::to_owned).to_vec()];
        rows.extend(report.iter().map(|row| {
            let cells = ["apgr", "cpt_50", "saved_at_98", "calibration_error"].map(|name| number(&row[name]));
            [vec![row["name"].as_str().unwrap_or_default().to_owned()], cells.to_vec()].concat()
        }));
        print(&table(&rows, &[1, 2, 3, 4]))
    }
}

/// Quality over cost for each way of expecting.
fn curves(data: &Data, tables: &[(&str, Rows)]) -> Result<Vec<Line>> {
    let models: &[Model] = &data.outcomes.models;
    let line = |(name, expected): &(&str, Rows)| {
        let all = spent(models, expected, &data.actual, &weighings()).map_err(Error::failure)?;
        let mut points: Vec<(f64, f64)> = all.iter().map(|reached| (reached.cost, reached.quality)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(Line { name: (*name).to_owned(), points })
    };
    tables.iter().map(line).collect()
}
