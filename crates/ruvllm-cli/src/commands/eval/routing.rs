//! `ruvllm eval routing`: selectors and baselines, cross-validated by groups.

use std::path::PathBuf;

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::OutputArgs;
use ruvllm_cli_tools::chart::{self, Axes, Line};
use ruvllm_cli_tools::check;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{print, print_json, print_line, table};
use ruvllm_cli_tools::routing::expect::Lesson;
use ruvllm_cli_tools::routing::outcomes::{self, Grouping};
use ruvllm_cli_tools::routing::{EmbedderArgs, alone_json};
use ruvllm_cli_tools::values::{count, fraction};
use ruvllm_learning::EmbedderName;
use ruvllm_router::evaluate::{
    Answers, bootstrap, calibration_error, cost_quality, grouped_folds, spent, weighing_that_keeps,
};
use ruvllm_router::{Link, Logistic, Neighbours, RouterError, Rows, TrainOptions, Weighing, expected_costs};
use serde_json::{Value, json};

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
    /// What belongs together, and is never both learned from and asked
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Grouping::Template)]
    groups: Grouping,
    /// The share of the best model's quality to keep; what is saved then is told, weighed by what other parts say
    #[arg(long, value_name = "SHARE", default_value_t = 0.98, value_parser = fraction)]
    keep: f32,
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
struct Data<'a> {
    lesson: Lesson<'a>,
    embeddings: Rows,
    actual: Answers,
    /// The part of each row: what is expected of it was learned from the others.
    parts: Vec<usize>,
}

/// Ways of learning that are compared.
const N_LEARNERS: usize = 3;
/// Settings that a baseline chooses among, within what it learns from.
const N_VARIANTS: usize = 4;
const K: [usize; N_VARIANTS] = [5, 10, 30, 100];
const L2: [f32; N_VARIANTS] = [2e-4, 6e-4, 2e-3, 6e-3];

/// Expected qualities for the rows that are asked, by the rows that are learned from and a variant.
type Learner = dyn Fn(&Data<'_>, &[usize], &[usize], usize) -> Result<Rows>;

fn neighbours(data: &Data<'_>, learned: &[usize], asked: &[usize], variant: usize) -> Result<Rows> {
    let (inputs, targets) = (data.embeddings.pick(learned), data.actual.qualities.pick(learned));
    let known = Neighbours::new(&inputs, &targets).map_err(Error::failure)?;
    rows(targets.width(), asked.iter().map(|&i| Ok(known.predict(data.embeddings.row(i), K[variant]))))
}

fn logistic(data: &Data<'_>, learned: &[usize], asked: &[usize], variant: usize) -> Result<Rows> {
    let (inputs, targets) = (data.embeddings.pick(learned), data.actual.qualities.pick(learned));
    let fit = Logistic::fit(&inputs, &targets, Link::Sigmoid, L2[variant]).map_err(Error::failure)?;
    rows(targets.width(), asked.iter().map(|&i| Ok(fit.predict(data.embeddings.row(i)))))
}

fn selector(data: &Data<'_>, learned: &[usize], asked: &[usize], _: usize) -> Result<Rows> {
    let selector = data.lesson.selector(learned, &TrainOptions::default(), &mut |_| {})?;
    let qualities = |&i: &usize| selector.predict(&data.lesson.all[i].query).map(|prediction| prediction.qualities);
    rows(data.lesson.outcomes.models.len(), asked.iter().map(qualities))
}

/// Not qualities but what answers cost.
fn costs(data: &Data<'_>, learned: &[usize], asked: &[usize], _: usize) -> Result<Rows> {
    let (models, expected) = (&data.lesson.outcomes.models, data.lesson.costs(learned)?);
    let cost_of = |&i: &usize| expected_costs(expected.as_ref(), models, &data.lesson.all[i].query);
    rows(models.len(), asked.iter().map(cost_of))
}

fn rows(width: usize, all: impl Iterator<Item = std::result::Result<Vec<f32>, RouterError>>) -> Result<Rows> {
    let mut rows = Rows::new(width);
    for row in all {
        row.and_then(|row| rows.push(&row)).map_err(Error::failure)?;
    }
    Ok(rows)
}

/// The rows of `of` inside and outside a fold.
fn divide(of: &[usize], folds: &[usize], fold: usize) -> (Vec<usize>, Vec<usize>) {
    let (inside, outside): (Vec<_>, Vec<_>) = of.iter().zip(folds).partition(|(_, own)| **own == fold);
    (inside.into_iter().map(|(i, _)| *i).collect(), outside.into_iter().map(|(i, _)| *i).collect())
}

/// The loss of expected qualities.
fn loss(data: &Data<'_>, asked: &[usize], expected: &Rows) -> f64 {
    let mut loss = 0.0;
    for (&i, row) in asked.iter().zip(expected.iter()) {
        for (&y, p) in data.actual.qualities.row(i).iter().zip(row) {
            let (y, p) = (f64::from(y), f64::from(p.clamp(0.01, 0.99)));
            loss -= y * p.ln() + (1.0 - y) * (1.0 - p).ln();
        }
    }
    loss
}

/// The variant of the least loss in a cross-validation within `of`.
fn best_variant(data: &Data<'_>, of: &[usize], learner: &Learner) -> Result<usize> {
    let groups: Vec<u64> = of.iter().map(|&i| data.lesson.outcomes.groups[i]).collect();
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

/// What is expected of every row by what did not see its group.
fn cross_validate(data: &Data<'_>, has_variants: bool, learner: &Learner) -> Result<Rows> {
    let all: Vec<usize> = (0..data.parts.len()).collect();
    let mut expected = vec![vec![]; data.parts.len()];
    for part in 0..=data.parts.iter().copied().max().unwrap_or(0) {
        let (asked, learned) = divide(&all, &data.parts, part);
        let variant = if has_variants { best_variant(data, &learned, learner)? } else { 0 };
        for (i, row) in asked.iter().zip(learner(data, &learned, &asked, variant)?.iter()) {
            expected[*i] = row.to_vec();
        }
    }
    rows(data.lesson.outcomes.models.len(), expected.into_iter().map(Ok))
}

/// The quality kept and the cost saved, as shares of the best model's, each part weighed by what kept `share` on the
/// others.
fn kept_and_saved(data: &Data<'_>, expected: &Answers, share: f32) -> Result<(f64, f64)> {
    let all: Vec<usize> = (0..data.parts.len()).collect();
    let (mut quality, mut cost) = (0.0, 0.0);
    for part in 0..=data.parts.iter().copied().max().unwrap_or(0) {
        let (asked, others) = divide(&all, &data.parts, part);
        let weighing = weighing_that_keeps(&expected.pick(&others), &data.actual.pick(&others), share.into());
        let reached = weighing.and_then(|by| spent(&expected.pick(&asked), &data.actual.pick(&asked), &[by]));
        let reached = reached.map_err(Error::failure)?.remove(0);
        quality += reached.quality * asked.len() as f64;
        cost += reached.cost * asked.len() as f64;
    }
    let (best, n) = (data.actual.best_single().map_err(Error::failure)?, all.len() as f64);
    Ok((quality / n / best.quality, 1.0 - cost / n / best.cost))
}

/// Each query's place in a drawn order.
fn drawn_order(n: usize, seed: u64) -> Vec<usize> {
    grouped_folds(&(0..n as u64).collect::<Vec<_>>(), n, seed)
}

/// What those expect who have learned nothing: each model alone is best, and chance.
fn known_nothing(data: &Data<'_>, costs: &Rows, seed: u64) -> Result<Vec<(String, Answers)>> {
    let (models, n) = (&data.lesson.outcomes.models, data.parts.len());
    let table = |name: String, quality: &dyn Fn(usize, usize) -> f32| -> Result<(String, Answers)> {
        let row = |i: usize| Ok((0..models.len()).map(|model| quality(i, model)).collect());
        Ok((name, Answers { qualities: rows(models.len(), (0..n).map(row))?, costs: costs.clone() }))
    };
    let mut tables = Vec::new();
    for (always, model) in models.iter().enumerate() {
        let is_chosen = |_: usize, model: usize| f32::from(model == always);
        tables.push(table(format!("always {}", model.name), &is_chosen)?);
    }
    let orders: Vec<Vec<usize>> = (0..models.len() as u64).map(|model| drawn_order(n, seed + model)).collect();
    tables.push(table("random".to_owned(), &|i, model| orders[model][i] as f32 / n as f32)?);
    Ok(tables)
}

/// Ways of weighing, from quality alone to cost alone.
fn weighings() -> Vec<Weighing> {
    (0..=50).map(|step| Weighing::Within(step as f32 / 50.0)).collect()
}

impl RoutingArgs {
    pub(super) fn run(&self, app: &App) -> Result<()> {
        let mut outcomes = outcomes::read(&self.outcomes, self.groups)?;
        if outcomes.n_groups() < self.folds {
            let n_groups = outcomes.n_groups();
            return Err(Error::failure(format_args!(
                "{n_groups} groups in {} parts; ask for fewer --folds",
                self.folds
            )));
        }
        self.plot.as_deref().map_or(Ok(()), |path| check::writable(path, &[&self.outcomes]))?;
        let embedder = self.embedder.name(app)?;
        if let (Some(path), EmbedderName::Model(name, _)) = (&self.plot, &embedder) {
            check::writable(path, &[&app.store().find(name, false)?])?;
        }
        let embeddings = outcomes.embeddings(app, &embedder)?;
        let n = outcomes.prompts.len();
        if self.null {
            let order = drawn_order(n, self.seed + 99);
            outcomes.qualities = order.iter().map(|&i| outcomes.qualities[i].clone()).collect();
        }
        let data = Data {
            lesson: Lesson { all: outcomes.for_training(&embeddings), outcomes: &outcomes },
            embeddings,
            actual: outcomes.answers()?,
            parts: grouped_folds(&outcomes.groups, self.folds, self.seed),
        };
        let bar = app.ui.spinner("selector, neighbours, regression");
        let costs = cross_validate(&data, false, &costs)?;
        let mut tables = Vec::new();
        let learners: [(&str, bool, &Learner); N_LEARNERS] =
            [("selector", false, &selector), ("neighbours", true, &neighbours), ("regression", true, &logistic)];
        for (name, has_variants, learner) in learners {
            let qualities = cross_validate(&data, has_variants, learner)?;
            tables.push((name.to_owned(), Answers { qualities, costs: costs.clone() }));
        }
        tables.push(("oracle".to_owned(), data.actual.clone()));
        tables.extend(known_nothing(&data, &costs, self.seed)?);
        bar.finish_and_clear();
        let row = |(i, (name, expected)): (usize, &(String, Answers))| self.row(&data, name, expected, i < N_LEARNERS);
        let report = tables.iter().enumerate().map(row).collect::<Result<Vec<_>>>()?;
        if let Some(path) = &self.plot {
            chart::write(path, Axes { x: "mean cost", y: "mean quality" }, &curves(&data, &tables)?)?;
        }
        self.tell(&data, report)
    }

    /// What one way of expecting reaches.
    fn row(&self, data: &Data<'_>, name: &str, expected: &Answers, is_learned: bool) -> Result<Value> {
        let (outcomes, actual) = (data.lesson.outcomes, &data.actual.qualities);
        let models = &outcomes.models;
        let mut row = json!({ "name": name });
        if is_learned {
            let of_row = |(p, y): (&[f32], &[f32])| p.iter().copied().zip(y.iter().copied()).collect::<Vec<_>>();
            let pairs: Vec<(f32, f32)> = expected.qualities.iter().zip(actual.iter()).flat_map(of_row).collect();
            row["calibration_error"] = json!(calibration_error(&pairs));
        }
        let (kept, saved) = kept_and_saved(data, expected, self.keep)?;
        (row["kept"], row["saved"]) = (json!(kept), json!(saved));
        if models.len() == 2 {
            // The cheaper one is the weak one.
            let (weak, strong) = if models[0].cost <= models[1].cost { (0, 1) } else { (1, 0) };
            let gain = |rows: &Rows| rows.iter().map(|row| row[strong] - row[weak]).collect::<Vec<f32>>();
            let (scores, of) =
                (gain(&expected.qualities), |model: usize| actual.iter().map(|row| row[model]).collect::<Vec<f32>>());
            let (weak, strong) = (of(weak), of(strong));
            let curve = cost_quality(&scores, &weak, &strong);
            let (low, high) = bootstrap(&outcomes.groups, self.draws, 5, |drawn| {
                let pick = |of: &[f32]| drawn.iter().map(|&i| of[i]).collect::<Vec<f32>>();
                cost_quality(&pick(&scores), &pick(&weak), &pick(&strong)).apgr()
            });
            row["apgr"] = json!(curve.apgr());
            row["apgr_95"] = json!([low, high]);
            row["cpt_50"] = json!(curve.cpt(0.5));
        }
        Ok(row)
    }

    fn tell(&self, data: &Data<'_>, report: Vec<Value>) -> Result<()> {
        let outcomes = data.lesson.outcomes;
        let (n, n_groups) = (outcomes.prompts.len(), outcomes.n_groups());
        let alone = alone_json(&outcomes.models, &data.actual.qualities);
        if self.output.json {
            return print_json(&json!({
                "n": n, "groups": n_groups, "folds": self.folds, "keep": self.keep, "null": self.null, "alone": alone, "table": report,
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
        let mut rows = vec![["", "APGR", "CPT 50", "KEPT", "SAVED", "CALIBRATION ERROR"].map(str::to_owned).to_vec()];
        rows.extend(report.iter().map(|row| {
            let cells = ["apgr", "cpt_50", "kept", "saved", "calibration_error"].map(|name| number(&row[name]));
            [vec![row["name"].as_str().unwrap_or_default().to_owned()], cells.to_vec()].concat()
        }));
        print(&table(&rows, &[1, 2, 3, 4, 5]))
    }
}

/// Quality over cost for each way of expecting.
fn curves(data: &Data<'_>, tables: &[(String, Answers)]) -> Result<Vec<Line>> {
    let line = |(name, expected): &(String, Answers)| {
        let all = spent(expected, &data.actual, &weighings()).map_err(Error::failure)?;
        let mut points: Vec<(f64, f64)> = all.iter().map(|reached| (reached.cost, reached.quality)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(Line { name: name.clone(), points })
    };
    tables.iter().map(line).collect()
}
