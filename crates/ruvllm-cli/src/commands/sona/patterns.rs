//! `ruvllm sona patterns`: what the ReasoningBank has of a model and a tenant.

use clap::Args;
use ruvllm_api::learning::pattern_json;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::LoadArgs;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{print, print_json, print_line, table};
use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_learning::{TenantLearning, of_sona};
use ruvllm_sona::bank::{Pattern, Select};
use serde_json::{Value, json};

use crate::commands::sona::{TenantArgs, when};

/// Letters of a task in a table.
const TASK_CHARS: usize = 60;

#[derive(Args, Debug)]
pub(super) struct PatternsArgs {
    /// Find patterns of tasks like this one; the newest are listed if it is left out
    #[arg(value_name = "TASK")]
    task: Option<String>,
    /// The most patterns
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// Forget this pattern
    #[arg(long, value_name = "ID", conflicts_with = "task")]
    remove: Option<u64>,
    #[command(flatten)]
    of: TenantArgs,
    #[command(flatten)]
    load: LoadArgs,
}

/// A pattern, and how near the task it is.
type Row = (u64, Option<f32>, Pattern);

impl PatternsArgs {
    pub(super) fn run(&self, app: &App) -> Result<()> {
        if self.task.as_ref().is_some_and(|task| task.trim().is_empty()) {
            return Err(Error::usage("TASK is empty; say in a line what is to be done"));
        }
        let mut loaded = self.of.load(app, &self.load)?;
        let bank = loaded.tenant.patterns()?;
        if let Some(id) = self.remove {
            if !bank.remove(id).map_err(of_sona)? {
                return Err(Error::failure(format_args!(
                    "there is no pattern {id}; 'ruvllm sona patterns' lists them"
                )));
            }
            return match self.of.output.json {
                true => print_json(&json!({ "removed": id, "count": bank.len() })),
                false => print_line(&format!("pattern {id} is forgotten; {} are left", bank.len())),
            };
        }
        let select = Select::default();
        let rows: Vec<Row> = match &self.task {
            None => {
                let newest = bank.newest(self.limit, &select).map_err(of_sona)?;
                newest.into_iter().map(|(id, pattern)| (id, None, pattern)).collect()
            }
            Some(task) => {
                let options = EncodeOptions { add_special: true, parse_special: false };
                let tokens = loaded.engine.tokenizer()?.encode(task, options)?;
                let (tokens, readout) = TenantLearning::task_readout(tokens);
                let query = loaded.tenant.task_embedding(&loaded.engine.read_out(&tokens, readout)?);
                let found = bank.search(&query, self.limit, &select).map_err(of_sona)?;
                found.into_iter().map(|found| (found.id, Some(found.similarity), found.pattern)).collect()
            }
        };
        match self.of.output.json {
            true => {
                let row = |(id, similarity, pattern): &Row| {
                    let mut value = pattern_json(*id, pattern);
                    value["similarity"] = json!(similarity);
                    value
                };
                let data: Vec<Value> = rows.iter().map(row).collect();
                print_json(&json!({ "tenant": self.of.tenant, "count": bank.len(), "data": data }))
            }
            false => show(&rows, bank.len()),
        }
    }
}

fn show(rows: &[Row], n: usize) -> Result<()> {
    if rows.is_empty() {
        return print_line(&format!("none of {n} patterns"));
    }
    let head = ["PATTERN", "LIKE", "VERDICT", "QUALITY", "USES", "WHEN (UTC)", "TASK"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|(id, similarity, pattern)| {
        let task = pattern.task.split_whitespace().collect::<Vec<_>>().join(" ");
        vec![
            id.to_string(),
            similarity.map_or(String::new(), |similarity| format!("{similarity:.2}")),
            pattern.verdict.name().to_owned(),
            format!("{:.2}", pattern.quality),
            pattern.n_uses.to_string(),
            when(pattern.created_ms),
            task.chars().take(TASK_CHARS).collect(),
        ]
    }));
    print(&table(&lines, &[0, 1, 3, 4]))
}
