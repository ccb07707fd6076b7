//! How good routing is: cross-validated tables of selectors and of roles, as JSON.
//!
//! ```text
//! cargo run --release -p ruvllm-router --example routing -- models FILE.jsonl [EMBEDDINGS.jsonl] [KEY=VALUE]…
//! cargo run --release -p ruvllm-router --example routing -- roles [EMBEDDINGS.jsonl] [KEY=VALUE]…
//! ```
//!
//! `FILE.jsonl` has `{"prompt", "weak", "strong"}` a line, the last two true or false (or 0 to 1), and a `"subject"`
//! where there are some: folds never divide one. `EMBEDDINGS.jsonl` has `{"embedding"}` for each line, as
//! `ruvllm embed --file … --json` writes them; without it, hashed words stand in. Settings: `folds=7`, `seed=1`,
//! `draws=200`, `null=1` (shuffled labels, in which nothing may be found), `baselines=0` (ours alone), and those of `TrainOptions`.

use std::error::Error;
use std::ops::ControlFlow;
use std::time::Instant;

use ruvllm_router::evaluate::{Confusion, bootstrap, calibration_error, cost_quality, grouped_folds, wilson};
use ruvllm_router::features;
use ruvllm_router::roles::{N_ROLES, Role, RoleClassifier, RoleExample, RoleOptions, examples, group_number};
use ruvllm_router::{HashedWords, Link, Logistic, Neighbours, Outcome, Rows, Selector, TrainOptions};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let (settings, words): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|word| word.contains('='));
    let settings = Settings::read(&settings)?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let report = match words[..] {
        ["models", file] => models(file, None, &settings)?,
        ["models", file, embeddings] => models(file, Some(embeddings), &settings)?,
        ["roles"] => roles(None, &settings)?,
        ["roles", embeddings] => roles(Some(embeddings), &settings)?,
        _ => return Err("usage: routing models FILE.jsonl [EMBEDDINGS.jsonl] | roles [EMBEDDINGS.jsonl]".into()),
    };
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}

/// What the command line asks for.
struct Settings {
    n_folds: usize,
    seed: u64,
    n_draws: usize,
    null: bool,
    baselines: bool,
    train: TrainOptions,
    roles: RoleOptions,
}

impl Settings {
    fn read(words: &[String]) -> Result<Settings> {
        let (train, roles) = (TrainOptions::default(), RoleOptions::default());
        let mut settings = Settings { n_folds: 7, seed: 1, n_draws: 200, null: false, baselines: true, train, roles };
        for word in words {
            let (key, value) = word.split_once('=').expect("words without = are no settings");
            let train = &mut settings.train;
            match key {
                "folds" => settings.n_folds = value.parse()?,
                "seed" => settings.seed = value.parse()?,
                "draws" => settings.n_draws = value.parse()?,
                "baselines" => settings.baselines = value == "1",
                "null" => settings.null = value == "1",
                "hidden" => train.n_hidden = value.parse()?,
                "rank" => train.rank = value.parse()?,
                "keep" => train.keep = value.parse()?,
                "members" => train.n_members = value.parse()?,
                "epochs" => train.n_epochs = value.parse()?,
                "batch" => train.batch = value.parse()?,
                "rate" => train.rate = value.parse()?,
                "l2" => train.l2 = value.parse()?,
                "l2_recurrent" => train.l2_recurrent = value.parse()?,
                "train_seed" => train.seed = value.parse()?,
                "role_l2" => settings.roles.l2 = value.parse()?,
                "role_accuracy" => settings.roles.accuracy = value.parse()?,
                _ => return Err(format!("there is no setting '{key}'").into()),
            }
        }
        Ok(settings)
    }
}

/// The queries of a file: vectors, what each model reached, groups.
struct Data {
    /// `[n, 128 + dim]`
    queries: Rows,
    /// `[n, dim]`
    embeddings: Rows,
    /// `[n, 2]`: weak, strong
    qualities: Rows,
    groups: Vec<u64>,
}

fn read_lines(file: &str) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("cannot read {file}: {error}"))?;
    Ok(text.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?)
}

/// The embeddings of a file in the order of its lines, or hashed words of the texts.
fn read_embeddings(file: Option<&str>, texts: &[&str]) -> Result<Rows> {
    let Some(file) = file else {
        let mut rows = Rows::new(384);
        texts.iter().try_for_each(|text| rows.push(&HashedWords::new(384).vector(text)))?;
        return Ok(rows);
    };
    let mut rows: Option<Rows> = None;
    for line in read_lines(file)? {
        let numbers = line["embedding"].as_array().ok_or("a line has no embedding")?;
        let vector: Vec<f32> = numbers.iter().filter_map(Value::as_f64).map(|x| x as f32).collect();
        rows.get_or_insert_with(|| Rows::new(vector.len().max(1))).push(&vector)?;
    }
    let rows = rows.ok_or("there are no embeddings")?;
    match rows.len() == texts.len() {
        true => Ok(rows),
        false => Err(format!("{} embeddings for {} texts", rows.len(), texts.len()).into()),
    }
}

fn read_data(file: &str, embeddings: Option<&str>) -> Result<Data> {
    let lines = read_lines(file)?;
    let texts: Vec<&str> = lines.iter().map(|line| line["prompt"].as_str().unwrap_or("")).collect();
    let embeddings = read_embeddings(embeddings, &texts)?;
    let (mut queries, mut qualities) = (Rows::new(features::N_FEATURES + embeddings.width()), Rows::new(2));
    let mut groups = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        queries.push(&[&features::of(texts[i])[..], embeddings.row(i)].concat())?;
        let quality = |key: &str| line[key].as_bool().map(|right| f64::from(u8::from(right))).or(line[key].as_f64());
        let pair = (quality("weak"), quality("strong"));
        let (Some(weak), Some(strong)) = pair else {
            return Err(format!("line {} lacks weak or strong", i + 1).into());
        };
        qualities.push(&[weak as f32, strong as f32])?;
        groups.push(line["subject"].as_str().map_or(i as u64, group_number));
    }
    Ok(Data { queries, embeddings, qualities, groups })
}

/// Expected qualities of the two models for some rows.
type Predictions = Vec<[f32; 2]>;

/// A way of learning: from which rows, about which rows, and which of its variants.
type Learner<'a> = &'a mut dyn FnMut(&[usize], &[usize], usize) -> Result<Predictions>;

fn pair(values: &[f32]) -> [f32; 2] {
    [values[0], values[1]]
}

/// The rows of `of` inside and outside a fold.
fn divide(of: &[usize], folds: &[usize], fold: usize) -> (Vec<usize>, Vec<usize>) {
    let (inside, outside): (Vec<_>, Vec<_>) = of.iter().zip(folds).partition(|(_, own)| **own == fold);
    (inside.into_iter().map(|(i, _)| *i).collect(), outside.into_iter().map(|(i, _)| *i).collect())
}

/// Predictions for every row by what did not see its group. Of several variants, that is taken which has the least
/// loss in a cross-validation within the rows that are learned from.
fn cross_validate(data: &Data, folds: &[usize], n_variants: usize, learner: Learner) -> Result<Predictions> {
    let all: Vec<usize> = (0..folds.len()).collect();
    let mut predictions = vec![[0.0; 2]; folds.len()];
    for fold in 0..=folds.iter().copied().max().unwrap_or(0) {
        let (asked, learned) = divide(&all, folds, fold);
        let variant = if n_variants > 1 { best_variant(data, &learned, n_variants, learner)? } else { 0 };
        for (i, prediction) in asked.iter().zip(learner(&learned, &asked, variant)?) {
            predictions[*i] = prediction;
        }
        eprintln!("fold {fold}: variant {variant}");
    }
    Ok(predictions)
}

fn best_variant(data: &Data, rows: &[usize], n_variants: usize, learner: Learner) -> Result<usize> {
    let groups: Vec<u64> = rows.iter().map(|&i| data.groups[i]).collect();
    let folds = grouped_folds(&groups, 3, 7);
    let mut best = (0, f64::INFINITY);
    for variant in 0..n_variants {
        let mut loss = 0.0;
        for fold in 0..3 {
            let (asked, learned) = divide(rows, &folds, fold);
            for (&i, prediction) in asked.iter().zip(learner(&learned, &asked, variant)?) {
                for (&y, p) in data.qualities.row(i).iter().zip(prediction) {
                    let (y, p) = (f64::from(y), f64::from(p.clamp(0.01, 0.99)));
                    loss -= y * p.ln() + (1.0 - y) * (1.0 - p).ln();
                }
            }
        }
        if loss < best.1 {
            best = (variant, loss);
        }
    }
    Ok(best.0)
}

/// The mean of what was seen at the nearest embeddings.
fn neighbours(data: &Data, learned: &[usize], asked: &[usize], variant: usize) -> Result<Predictions> {
    const K: [usize; N_VARIANTS] = [10, 30, 100, 300];
    let known = Neighbours::new(&data.embeddings.pick(learned), &data.qualities.pick(learned))?;
    Ok(asked.iter().map(|&i| pair(&known.predict(data.embeddings.row(i), K[variant]))).collect())
}

/// Logistic regression on the embedding.
fn logistic(data: &Data, learned: &[usize], asked: &[usize], variant: usize) -> Result<Predictions> {
    const L2: [f32; N_VARIANTS] = [2e-4, 6e-4, 2e-3, 6e-3];
    let inputs = data.embeddings.pick(learned);
    let fit = Logistic::fit(&inputs, &data.qualities.pick(learned), Link::Sigmoid, L2[variant])?;
    Ok(asked.iter().map(|&i| pair(&fit.predict(data.embeddings.row(i)))).collect())
}

const N_VARIANTS: usize = 4;

/// The selector of the crate.
fn selector(data: &Data, learned: &[usize], asked: &[usize], options: &TrainOptions) -> Result<Predictions> {
    let outcome = |&i: &usize| Outcome {
        query: data.queries.row(i).to_vec(),
        group: data.groups[i],
        qualities: data.qualities.row(i).iter().map(|&quality| Some(quality)).collect(),
        settings: None,
    };
    let outcomes: Vec<Outcome> = learned.iter().map(outcome).collect();
    let selector = Selector::train(&["weak", "strong"], &outcomes, options, |told| {
        eprintln!("member {} epoch {}: loss left out {:.4}", told.member, told.epoch, told.loss_left_out);
        ControlFlow::Continue(())
    })?;
    asked.iter().map(|&i| Ok(pair(&selector.predict(data.queries.row(i))?.qualities))).collect()
}

fn models(file: &str, embeddings: Option<&str>, settings: &Settings) -> Result<Value> {
    let mut data = read_data(file, embeddings)?;
    let n = data.groups.len();
    if settings.null {
        // The labels of another row: each row's in a fold of its own, drawn by the seed.
        let order: Vec<usize> = grouped_folds(&(0..n as u64).collect::<Vec<_>>(), n, settings.seed + 99);
        data.qualities = data.qualities.pick(&order);
    }
    let folds = grouped_folds(&data.groups, settings.n_folds, settings.seed);
    let start = Instant::now();
    let ours =
        cross_validate(&data, &folds, 1, &mut |learned, asked, _| selector(&data, learned, asked, &settings.train))?;
    let train_s = start.elapsed().as_secs_f64() / settings.n_folds as f64;
    let mut tables = vec![("fastgrnn", ours.clone())];
    if settings.baselines {
        let knn = cross_validate(&data, &folds, N_VARIANTS, &mut |l, a, v| neighbours(&data, l, a, v))?;
        let logistic = cross_validate(&data, &folds, N_VARIANTS, &mut |l, a, v| logistic(&data, l, a, v))?;
        tables.extend([("knn", knn), ("logistic", logistic)]);
    }

    let (weak, strong): (Vec<f32>, Vec<f32>) = data.qualities.iter().map(|row| (row[0], row[1])).unzip();
    let gains = |predictions: &Predictions| predictions.iter().map(|p| p[1] - p[0]).collect::<Vec<f32>>();
    let mut rows = Vec::new();
    for (name, predictions) in &tables {
        let mut row = scored(name, &gains(predictions), (&weak, &strong), &data.groups, settings);
        let pairs = |model: usize| {
            let of = |(p, y): (&[f32; 2], &[f32])| (p[model], y[model]);
            predictions.iter().zip(data.qualities.iter()).map(of).collect::<Vec<(f32, f32)>>()
        };
        let errors = [0, 1].map(|model| calibration_error(&pairs(model)));
        row["calibration_error"] =
            json!({"weak": errors[0], "strong": errors[1], "both": calibration_error(&[pairs(0), pairs(1)].concat())});
        rows.push(row);
    }
    let oracle: Vec<f32> = weak.iter().zip(&strong).map(|(weak, strong)| strong - weak).collect();
    rows.push(scored("random", &vec![0.0; n], (&weak, &strong), &data.groups, settings));
    rows.push(scored("oracle", &oracle, (&weak, &strong), &data.groups, settings));
    let mut above = serde_json::Map::new();
    for (name, other) in &tables[1..] {
        let (ours, other) = (gains(&ours), gains(other));
        let (low, high) = bootstrap(&data.groups, settings.n_draws, 5, |drawn| {
            apgr_of(&ours, (&weak, &strong), drawn) - apgr_of(&other, (&weak, &strong), drawn)
        });
        above.insert((*name).into(), json!([low, high]));
    }
    Ok(json!({
        "file": file, "n": n, "folds": settings.n_folds, "null": settings.null,
        "options": format!("{:?}", settings.train), "train_s_per_fold": train_s,
        "always_weak": mean(&weak), "always_strong": mean(&strong), "table": rows,
        "fastgrnn_above_95": above,
        "microseconds": speed(&data, &settings.train)?,
    }))
}

fn mean(values: &[f32]) -> f64 {
    values.iter().map(|&x| f64::from(x)).sum::<f64>() / values.len() as f64
}

fn apgr_of(scores: &[f32], (weak, strong): (&[f32], &[f32]), rows: &[usize]) -> f64 {
    let pick = |of: &[f32]| rows.iter().map(|&i| of[i]).collect::<Vec<f32>>();
    cost_quality(&pick(scores), &pick(weak), &pick(strong)).apgr()
}

/// One row of the table.
fn scored(name: &str, scores: &[f32], (weak, strong): (&[f32], &[f32]), groups: &[u64], settings: &Settings) -> Value {
    let curve = cost_quality(scores, weak, strong);
    let (low, high) = bootstrap(groups, settings.n_draws, 5, |drawn| apgr_of(scores, (weak, strong), drawn));
    let oracle: Vec<f32> = weak.iter().zip(strong).map(|(weak, strong)| strong - weak).collect();
    let best = cost_quality(&oracle, weak, strong);
    let quality: Vec<f64> = (0..=10).map(|tenth| curve.quality_at(f64::from(tenth) / 10.0)).collect();
    json!({
        "name": name, "apgr": curve.apgr(), "apgr_95": [low, high], "cpt_50": curve.cpt(0.5),
        "regret_at_half": best.quality_at(0.5) - curve.quality_at(0.5), "quality_by_tenths_of_cost": quality,
    })
}

/// Medians of features and of a decision.
fn speed(data: &Data, options: &TrainOptions) -> Result<Value> {
    let outcomes: Vec<Outcome> = (0..data.groups.len().min(200))
        .map(|i| Outcome {
            query: data.queries.row(i).to_vec(),
            group: i as u64,
            qualities: data.qualities.row(i).iter().map(|&quality| Some(quality)).collect(),
            settings: None,
        })
        .collect();
    let options = TrainOptions { n_epochs: 3, ..*options };
    let selector = Selector::train(&["weak", "strong"], &outcomes, &options, |_| ControlFlow::Continue(()))?;
    let text = "Why does `parse(x)` fail with 12 errors when a line of the file is empty?\n".repeat(14);
    let median = |f: &mut dyn FnMut()| {
        let mut times: Vec<f64> = (0..201)
            .map(|_| {
                let start = Instant::now();
                f();
                start.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times[100]
    };
    let features = median(&mut || {
        std::hint::black_box(features::of(&text));
    });
    let select = median(&mut || {
        let _ = std::hint::black_box(selector.predict(&outcomes[0].query));
    });
    Ok(json!({"features_per_kib": features * 1024.0 / text.len() as f64, "select": select}))
}

/// Which role each example is given by what did not see its topic; `None` where there was no answer.
type Answers = Vec<Option<usize>>;

/// Settings of the baselines of roles. They are chosen on the test itself, in the baselines' favour.
const ROLES_K: [usize; 3] = [5, 10, 20];
const ROLES_L2: [f32; 4] = [3e-5, 1e-4, 3e-4, 1e-3];

fn roles(embeddings: Option<&str>, settings: &Settings) -> Result<Value> {
    let examples = examples();
    let texts: Vec<&str> = examples.iter().map(|example| example.prompt.as_str()).collect();
    let embeddings = read_embeddings(embeddings, &texts)?;
    let groups: Vec<u64> = examples.iter().map(|example| group_number(&example.group)).collect();
    let folds = grouped_folds(&groups, settings.n_folds, settings.seed);
    let all: Vec<usize> = (0..examples.len()).collect();
    let (mut ours, mut sure, mut pairs) = (vec![None; all.len()], vec![None; all.len()], Vec::new());
    for fold in 0..settings.n_folds {
        let (asked, learned) = divide(&all, &folds, fold);
        let known: Vec<RoleExample> = learned.iter().map(|&i| examples[i].clone()).collect();
        let classifier = RoleClassifier::train(&known, &embeddings.pick(&learned), &settings.roles)?;
        for i in asked {
            let verdict = classifier.classify(texts[i], embeddings.row(i))?;
            let (best, share) = verdict.ranked[0];
            pairs.push((share, f32::from(best == examples[i].role)));
            (ours[i], sure[i]) = (Some(best.index()), verdict.role.map(Role::index));
        }
    }
    let mut table =
        vec![accuracy("classifier", &ours, &examples), accuracy("classifier, may abstain", &sure, &examples)];
    for (name, answers) in role_baselines(&examples, &embeddings, &folds)? {
        table.push(accuracy(&name, &answers, &examples));
    }
    let mut confusion = Confusion::new(N_ROLES);
    examples.iter().zip(&ours).for_each(|(example, role)| confusion.add(example.role.index(), role.unwrap_or(0)));
    let matrix: Vec<Value> = Role::all()
        .map(|role| json!({"role": role.name(), "as": confusion.row(role.index()), "f1": confusion.f1(role.index())}))
        .collect();
    Ok(json!({
        "n": examples.len(), "folds": settings.n_folds, "options": format!("{:?}", settings.roles),
        "calibration_error": calibration_error(&pairs), "table": table, "confusion": matrix,
    }))
}

/// What logistic regression and neighbours on the embedding answer, and the role that is seen most.
fn role_baselines(examples: &[RoleExample], embeddings: &Rows, folds: &[usize]) -> Result<Vec<(String, Answers)>> {
    let mut targets = Rows::new(N_ROLES);
    for example in examples {
        targets.push(&std::array::from_fn::<f32, N_ROLES, _>(|role| f32::from(role == example.role.index())))?;
    }
    let all: Vec<usize> = (0..examples.len()).collect();
    let mut named: Vec<(String, Answers)> = Vec::new();
    named.extend(ROLES_L2.iter().map(|l2| (format!("logistic, l2 {l2}"), vec![None; all.len()])));
    named.extend(ROLES_K.iter().map(|k| (format!("knn, k {k}"), vec![None; all.len()])));
    named.push(("majority".into(), vec![None; all.len()]));
    for fold in 0..=folds.iter().copied().max().unwrap_or(0) {
        let (asked, learned) = divide(&all, folds, fold);
        let (vectors, roles) = (embeddings.pick(&learned), targets.pick(&learned));
        let neighbours = Neighbours::new(&vectors, &roles)?;
        let fit = |&l2: &f32| Logistic::fit(&vectors, &roles, Link::Softmax, l2);
        let fits = ROLES_L2.iter().map(fit).collect::<std::result::Result<Vec<_>, _>>()?;
        for i in asked {
            let x = embeddings.row(i);
            let mut shares: Vec<Vec<f32>> = fits.iter().map(|fit| fit.predict(x)).collect();
            shares.extend(ROLES_K.iter().map(|&k| neighbours.predict(x, k)));
            shares.push(neighbours.predict(x, learned.len()));
            for ((_, answers), shares) in named.iter_mut().zip(shares) {
                answers[i] = Some(greatest(&shares));
            }
        }
    }
    Ok(named)
}

fn greatest(values: &[f32]) -> usize {
    (0..values.len()).max_by(|&a, &b| values[a].total_cmp(&values[b]).then(b.cmp(&a))).unwrap_or(0)
}

fn accuracy(name: &str, answers: &Answers, examples: &[RoleExample]) -> Value {
    let answered: Vec<(usize, &RoleExample)> =
        answers.iter().zip(examples).filter_map(|(role, example)| Some(((*role)?, example))).collect();
    let right = answered.iter().filter(|(role, example)| example.role.index() == *role).count();
    let also = |(role, example): &&(usize, &RoleExample)| {
        example.role.index() == *role || example.also.iter().any(|other| other.index() == *role)
    };
    let lenient = answered.iter().filter(also).count();
    let (low, high) = wilson(right, answered.len());
    let share = |part: usize, of: usize| part as f64 / of.max(1) as f64;
    json!({
        "name": name, "answered": share(answered.len(), answers.len()), "accuracy": share(right, answered.len()),
        "wilson_95": [low, high], "accuracy_with_also": share(lenient, answered.len()),
    })
}
