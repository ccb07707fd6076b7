//! `ruvllm eval roles`: the role classifier on topics that it did not learn from.

use std::path::PathBuf;

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::OutputArgs;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{print, print_json, print_line, table};
use ruvllm_cli_tools::routing::{EmbedderArgs, embed_all};
use ruvllm_cli_tools::values::count;
use ruvllm_router::Rows;
use ruvllm_router::evaluate::{Confusion, calibration_error, grouped_folds, wilson};
use ruvllm_router::roles::{
    N_ROLES, Role, RoleClassifier, RoleExample, RoleOptions, examples, group_number, read_examples,
};
use serde_json::{Value, json};

/// Options of `ruvllm eval roles`.
#[derive(Args, Debug)]
pub(super) struct RolesArgs {
    /// Examples of one's own: lines {"prompt", "role", "group", "also": []} [default: the 780 that come with the program]
    #[arg(value_name = "FILE")]
    examples: Option<PathBuf>,
    #[command(flatten)]
    embedder: EmbedderArgs,
    /// Into how many parts the topics are divided
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = count::<2, 100>)]
    folds: usize,
    /// How they are divided
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Give each prompt the role of another: nothing may be found then
    #[arg(long)]
    null: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Queries of which the classifier was sure enough to name a role.
#[derive(Clone, Copy, Default)]
struct Sure {
    n: usize,
    /// Number of queries whose role was right.
    n_right: usize,
}

impl RolesArgs {
    pub(super) fn run(&self, app: &App) -> Result<()> {
        let mut examples = match &self.examples {
            None => examples(),
            Some(path) => read_examples(&ruvllm_cli_tools::text_files::read_text(path)?).map_err(Error::failure)?,
        };
        if self.null {
            let n = examples.len();
            let order = grouped_folds(&(0..n as u64).collect::<Vec<_>>(), n, self.seed + 99);
            let roles: Vec<Role> = order.iter().map(|&i| examples[i].role).collect();
            examples.iter_mut().zip(roles).for_each(|(example, role)| (example.role, example.also) = (role, vec![]));
        }
        let embedder = self.embedder.name(app)?;
        let mut embeddings = Rows::new(embedder.dim());
        let texts = examples.iter().map(|example| example.prompt.as_str());
        embed_all(app, &embedder, texts, &mut |vector| embeddings.push(&vector).map_err(Error::failure))?;
        let groups: Vec<u64> = examples.iter().map(|example| group_number(&example.group)).collect();
        let folds = grouped_folds(&groups, self.folds, self.seed);
        let bar = app.ui.steps_bar("learning", self.folds as u64);
        let (mut confusion, mut pairs, mut sure) = (Confusion::new(N_ROLES), Vec::new(), Sure::default());
        for fold in 0..self.folds {
            let (asked, learned): (Vec<usize>, Vec<usize>) = (0..examples.len()).partition(|&i| folds[i] == fold);
            let known: Vec<RoleExample> = learned.iter().map(|&i| examples[i].clone()).collect();
            let classifier = RoleClassifier::train(&known, &embeddings.pick(&learned), &RoleOptions::default());
            let classifier = classifier.map_err(Error::failure)?;
            for i in asked {
                let verdict = classifier.classify(&examples[i].prompt, embeddings.row(i)).map_err(Error::failure)?;
                let (likeliest, share) = verdict.ranked[0];
                confusion.add(examples[i].role.index(), likeliest.index());
                pairs.push((share, f32::from(likeliest == examples[i].role)));
                if let Some(role) = verdict.role {
                    sure.n += 1;
                    sure.n_right += usize::from(role == examples[i].role);
                }
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        self.tell(&confusion, sure, calibration_error(&pairs))
    }

    fn tell(&self, confusion: &Confusion, sure: Sure, error: f64) -> Result<()> {
        let (right, n) = confusion.right();
        let share = |part: usize, of: usize| part as f64 / of.max(1) as f64;
        let bounds = wilson(right, n);
        if self.output.json {
            let matrix = Role::all().map(|role| {
                json!({ "role": role.name(), "as": confusion.row(role.index()), "f1": confusion.f1(role.index()) })
            });
            return print_json(&json!({
                "n": n, "folds": self.folds, "null": self.null, "accuracy": share(right, n), "wilson_95": [bounds.0, bounds.1],
                "answered": share(sure.n, n), "accuracy_of_answered": share(sure.n_right, sure.n),
                "calibration_error": error, "confusion": matrix.collect::<Vec<Value>>(),
            }));
        }
        print_line(&format!(
            "{:.1} % of {n} right ({:.1} to {:.1} with 95 % confidence); {:.1} % of the {:.1} % where it does not abstain",
            100.0 * share(right, n),
            100.0 * bounds.0,
            100.0 * bounds.1,
            100.0 * share(sure.n_right, sure.n),
            100.0 * share(sure.n, n)
        ))?;
        let head =
            std::iter::once("ROLE".to_owned()).chain((1..=N_ROLES).map(|i| i.to_string())).chain(["F1".to_owned()]);
        let row = |(i, role): (usize, Role)| {
            let counts = confusion.row(role.index()).iter().map(usize::to_string);
            let name = std::iter::once(format!("{} {}", i + 1, role.name()));
            name.chain(counts).chain([format!("{:.2}", confusion.f1(role.index()))]).collect::<Vec<String>>()
        };
        let rows: Vec<_> = std::iter::once(head.collect()).chain(Role::all().enumerate().map(row)).collect();
        print(&table(&rows, &(1..=N_ROLES + 1).collect::<Vec<_>>()))
    }
}
