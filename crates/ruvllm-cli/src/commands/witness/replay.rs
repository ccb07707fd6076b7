//! `ruvllm witness replay`: recorded requests, run again.

use std::collections::BTreeMap;

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::lora::LoraArgs;
use ruvllm_cli_tools::output::{print_json, print_line};
use ruvllm_engine::{AdapterSet, Engine, LoadOptions};
use ruvllm_sona::witness::Served;
use ruvllm_witness::{Replayed, adapters_of, check, load_options, replay};
use serde_json::json;

use crate::commands::witness::{FilterArgs, Found, LogArgs};
use ruvllm_hub::DEFAULT_MODEL;

/// Options of `ruvllm witness replay`.
#[derive(Args, Debug)]
pub(super) struct ReplayArgs {
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// The model that answered, by name or path; its hash must be the recorded one; may be given several times
    #[arg(short, long, value_name = "NAME|PATH", default_value = DEFAULT_MODEL, help_heading = "Model")]
    model: Vec<String>,
    /// Worker threads [default: one a core this process may use]
    #[arg(long, value_name = "N", value_parser = ruvllm_cli_tools::values::count::<1, { ruvllm_cli_tools::machine::MAX_THREADS }>, help_heading = "Model")]
    threads: Option<usize>,
    #[command(flatten)]
    lora: LoraArgs,
}

/// What became of a record.
enum Outcome {
    Run(Replayed),
    /// Why it was not run.
    Left(String),
}

/// How a model has to be loaded for some of the records.
type Setup = (String, usize, String);

impl ReplayArgs {
    pub(super) fn run(&self, app: &App) -> Result<()> {
        self.filter.check()?;
        self.lora.check(app)?;
        self.model.iter().try_for_each(|model| app.store().check(model))?;
        let store = self.log.open()?;
        let mut found = self.filter.find(store.as_ref())?;
        found.retain(|found| found.served().is_some());
        found.reverse();
        let mut outcomes: Vec<Option<Outcome>> = found.iter().map(left_out).collect();
        let bar = app.ui.steps_bar("replaying", found.len() as u64);
        for model in &self.model {
            let path = app.store().locate(model, true)?;
            for setup in setups(&found, &outcomes)? {
                let of_setup = |i: &usize| outcomes[*i].is_none() && setup_of(&found[*i]).is_ok_and(|own| own == setup);
                let these: Vec<usize> = (0..found.len()).filter(of_setup).collect();
                let Some(first) = these.first().and_then(|&i| found[i].served()) else { continue };
                let threads = app.settings.threads(self.threads);
                let options = load_options(first, LoadOptions { n_threads: threads, ..LoadOptions::default() })?;
                let mut engine = app.load(&path, &options)?;
                let hash = engine.content_hash()?;
                let adapters = self.lora.load(app, &engine)?;
                for i in these {
                    let Some(served) = found[i].served().filter(|served| served.model == hash) else { continue };
                    outcomes[i] = Some(self.one(&mut engine, served, &adapters)?);
                    bar.inc(1);
                }
            }
        }
        bar.finish_and_clear();
        self.tell(&found, &outcomes)
    }

    fn one(&self, engine: &mut Engine, served: &Served, adapters: &AdapterSet) -> Result<Outcome> {
        // One that had none is run without those that others had.
        let without = AdapterSet::default();
        let adapters = if adapters_of(served)?.is_empty() { &without } else { adapters };
        Ok(match replay(engine, served, adapters) {
            Ok(replayed) => Outcome::Run(replayed),
            Err(error) => Outcome::Left(error.to_string()),
        })
    }

    fn tell(&self, found: &[Found], outcomes: &[Option<Outcome>]) -> Result<()> {
        let (mut n_same, mut n_other, mut n_left, mut rows) = (0, 0, 0, Vec::new());
        for (found, outcome) in found.iter().zip(outcomes) {
            let seq = found.recorded.seq;
            let (state, why) = match outcome {
                Some(Outcome::Run(replayed)) if replayed.is_same() => ("same", String::new()),
                Some(Outcome::Run(replayed)) => ("other", difference(replayed)),
                Some(Outcome::Left(why)) => ("left", why.clone()),
                None => ("left", "none of the models given has its hash".to_owned()),
            };
            match state {
                "same" => n_same += 1,
                "other" => n_other += 1,
                _ => n_left += 1,
            }
            if self.log.output.json {
                let n_tokens = found.served().map(|served| served.completion.n_tokens);
                rows.push(json!({ "seq": seq, "state": state, "n_tokens": n_tokens, "why": why }));
            } else if state != "same" {
                print_line(&format!("record {seq}: {why}"))?;
            }
        }
        match self.log.output.json {
            true => print_json(&json!({ "same": n_same, "other": n_other, "left": n_left, "records": rows }))?,
            false => print_line(&format!("{n_same} came out the same, {n_other} did not, {n_left} could not be run"))?,
        }
        match n_other {
            0 if n_same == 0 && n_left > 0 => {
                Err(Error::failure(format_args!("none of {n_left} records could be run")))
            }
            0 => Ok(()),
            n => Err(Error::failure(format_args!("{n} of {} answers did not come out again", n_same + n))),
        }
    }
}

/// Returns why a record cannot be run again, whatever the model.
fn left_out(found: &Found) -> Option<Outcome> {
    let served = found.served()?;
    check(served).err().map(|error| Outcome::Left(error.to_string()))
}

/// Returns how a record's model was loaded: instruction set, context, cache policy.
fn setup_of(found: &Found) -> Result<Setup> {
    let served = found.served().ok_or_else(|| Error::failure("only requests can be run again"))?;
    let options = load_options(served, LoadOptions::default())?;
    Ok((options.isa.to_string(), options.n_ctx.unwrap_or_default(), options.kv.to_string()))
}

/// Returns the ways in which models have to be loaded, each once, those first that most records need.
fn setups(found: &[Found], outcomes: &[Option<Outcome>]) -> Result<Vec<Setup>> {
    let mut counts: BTreeMap<Setup, usize> = BTreeMap::new();
    for (found, _) in found.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_none()) {
        *counts.entry(setup_of(found)?).or_default() += 1;
    }
    let mut setups: Vec<_> = counts.into_iter().collect();
    setups.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    Ok(setups.into_iter().map(|(setup, _)| setup).collect())
}

fn difference(replayed: &Replayed) -> String {
    let Replayed { n_tokens, n_same, other_finish, other_program, tokens } = replayed;
    let program =
        other_program.as_ref().map_or_else(String::new, |program| format!("; another program wrote it ({program})"));
    match other_finish {
        Some((then, now)) if n_same == n_tokens => format!("it ended by {then} then and by {now} now{program}"),
        _ => format!("{n_same} of {n_tokens} tokens came out again, then others ({} in all){program}", tokens.len()),
    }
}
