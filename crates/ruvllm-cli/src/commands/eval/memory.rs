//! `ruvllm eval memory`: corrections that are told once, asked again, asked in other words, and asked of something else.

use std::sync::Arc;

use clap::Args;
use ruvllm_cli_tools::answer::answer;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{LoadArgs, ModelArgs, OutputArgs};
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{print_json, print_line, table};
use ruvllm_cli_tools::values::count;
use ruvllm_cli_tools::{interrupt, learning};
use ruvllm_engine::{CancelToken, Engine, GenerateRequest, LoadOptions, SamplingParams};
use ruvllm_learning::{
    AnswerScore, Correctness, Learning, LearningOptions, Question, Task, TenantLearning, score_answer,
};
use serde::Deserialize;
use serde_json::{Value, json};

const AFTER_HELP: &str = "\
100 invented facts are told once and asked again: in the same words, in others, and of a neighbour that
nobody told anything of. 200 prompts that have nothing to do with them are answered before and after.
Then the model's own answers to the 100 questions are called wrong. The facts are in the program, split
by template: settings were chosen on none of them, and 'test' is what counts.";

/// Tokens of an answer to a prompt that has nothing to do with what was told.
const N_TOKENS: usize = 24;
/// Tokens beyond those of the answer that was told.
const N_BEYOND: usize = 8;

const FACTS: &str = include_str!("facts.jsonl");
const UNRELATED: &str = include_str!("unrelated.txt");

/// Options of `ruvllm eval memory`.
#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct MemoryArgs {
    /// Tell and ask only N facts
    #[arg(long, value_name = "N", value_parser = count::<1, 100>, default_value_t = 100)]
    facts: usize,
    /// Answer only N prompts that have nothing to do with them
    #[arg(long, value_name = "N", value_parser = count::<1, 200>, default_value_t = 200)]
    unrelated: usize,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Something that is told.
#[derive(Debug, Deserialize)]
struct Fact {
    /// `dev` or `test`; facts of one template are on one side.
    split: String,
    /// Whether names say what it is about.
    named: bool,
    question: String,
    paraphrase: String,
    answer: String,
    /// The same asked of something else.
    neighbour: String,
}

/// Counts of what happened, of how many.
#[derive(Clone, Copy, Debug, Default)]
struct Share(usize, usize);

impl Share {
    fn count(&mut self, happened: bool) {
        self.0 += usize::from(happened);
        self.1 += 1;
    }

    fn value(self) -> f64 {
        self.0 as f64 / self.1.max(1) as f64
    }

    fn json(self) -> Value {
        json!({ "count": self.0, "of": self.1, "share": self.value() })
    }

    fn text(self) -> String {
        format!("{} of {} ({:.1} %)", self.0, self.1, 100.0 * self.value())
    }
}

/// What came of facts: all, or those of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    exact: Share,
    paraphrase: Share,
    neighbour: Share,
}

/// What came of calling answers wrong.
#[derive(Default)]
struct Negative {
    lowered: Share,
    /// Sums over answers: the mean change of log-probability of a token, in nats.
    change: f64,
    /// Sums over prompts that nobody judged: KL of a token, in nats.
    kl: f64,
    n_kl: usize,
}

/// A model with what it is asked.
struct Bench {
    engine: Engine,
    learning: Learning,
    cancel: CancelToken,
}

impl MemoryArgs {
    /// Measures and prints.
    ///
    /// # Errors
    /// A failure if the model cannot be had or learns nothing.
    pub fn run(&self, app: &App) -> Result<()> {
        let facts = FACTS.lines().map(serde_json::from_str).collect::<Result<Vec<Fact>, _>>();
        let facts = facts.map_err(|error| Error::failure(format_args!("the facts are no JSON: {error}")))?;
        // Some of each template, where not all are asked.
        let step = facts.len() / self.facts;
        let facts: Vec<Fact> = facts.into_iter().step_by(step).take(self.facts).collect();
        let unrelated: Vec<&str> = UNRELATED.lines().take(self.unrelated).collect();
        ruvllm_cli_tools::check::writable_folder(&app.settings.learned_dir())?;
        let path = app.store().locate(&self.model.model, true)?;
        let mut engine = app.load(&path, &LoadOptions { n_seq_max: 1, ..self.load.options(&app.settings, None) })?;
        let options = LearningOptions { prompts: false, ..LearningOptions::default() };
        let learning = learning::open_model(app, &mut engine, options)?;
        let mut bench = Bench { engine, learning, cancel: CancelToken::default() };
        let _guard = interrupt::cancels(&bench.cancel);
        let n_steps = 5 * facts.len() + 3 * unrelated.len();
        let bar = app.ui.steps_bar("memory", n_steps as u64);
        let done = || bar.inc(1);
        let (outcomes, unchanged) = bench.told(&facts, &unrelated, &done)?;
        let negative = bench.negative(&facts, &unrelated, &done)?;
        bar.finish_and_clear();
        let model = bench.engine.info().name.clone();
        match self.output.json {
            true => print_json(&json_of(&model, &outcomes, unchanged, &negative)),
            false => print_line(text_of(&outcomes, unchanged, &negative).trim_end()),
        }
    }
}

impl Bench {
    /// Tells all facts, and asks.
    fn told(
        &mut self,
        facts: &[Fact],
        unrelated: &[&str],
        done: &dyn Fn(),
    ) -> Result<(Vec<(&'static str, Outcome)>, Share)> {
        let tenant = self.learning.transient()?;
        let mut before = Vec::new();
        for prompt in unrelated {
            before.push(self.ask(None, prompt, N_TOKENS)?);
            done();
        }
        let mut neighbours = Vec::new();
        for fact in facts {
            let n = self.engine.text()?.encode_answer(&fact.answer)?.len() + N_BEYOND;
            neighbours.push((n, self.ask(None, &fact.neighbour, n)?));
            learning::tell(&mut self.engine, &tenant, &fact.question, &fact.answer, Correctness::Right)?;
            done();
        }
        let mut outcomes: Vec<(&str, Outcome)> =
            ["all", "test", "named", "test, named", "without names"].map(|name| (name, Outcome::default())).to_vec();
        for (fact, (n, neighbour)) in facts.iter().zip(&neighbours) {
            let exact = self.ask(Some(&tenant), &fact.question, *n)?.starts_with(&fact.answer);
            let paraphrase = self.ask(Some(&tenant), &fact.paraphrase, *n)?.starts_with(&fact.answer);
            let fired = self.ask(Some(&tenant), &fact.neighbour, *n)? != *neighbour;
            let is_test = fact.split == "test";
            let kinds = [true, is_test, fact.named, is_test && fact.named, !fact.named];
            for ((_, outcome), _) in outcomes.iter_mut().zip(kinds).filter(|(_, is_one)| *is_one) {
                outcome.exact.count(exact);
                outcome.paraphrase.count(paraphrase);
                outcome.neighbour.count(fired);
            }
            (0..3).for_each(|_| done());
        }
        let mut unchanged = Share::default();
        for (prompt, before) in unrelated.iter().zip(before) {
            unchanged.count(self.ask(Some(&tenant), prompt, N_TOKENS)? == before);
            done();
        }
        Ok((outcomes, unchanged))
    }

    /// Calls the model's own answers to all questions wrong, and looks at how likely they are then.
    fn negative(&mut self, facts: &[Fact], unrelated: &[&str], done: &dyn Fn()) -> Result<Negative> {
        let tenant = self.learning.transient()?;
        let mut answers = Vec::new();
        for (i, fact) in facts.iter().enumerate() {
            let id = i.to_string();
            let tokens = self.generate(Some((&tenant, Some(&id))), &fact.question, N_TOKENS)?.1;
            tenant.judge(&id, 0.0)?;
            answers.push(tokens);
            done();
        }
        tenant.settle();
        let mut negative = Negative::default();
        for (fact, answer) in facts.iter().zip(&answers) {
            let AnswerScore { alone, learned, .. } = self.score(&tenant, &fact.question, answer)?;
            let change = learned.iter().zip(&alone).map(|(a, b)| f64::from(a - b)).sum::<f64>() / answer.len() as f64;
            negative.lowered.count(change < 0.0);
            negative.change += change;
        }
        for prompt in unrelated {
            let answer = self.generate(None, prompt, N_TOKENS)?.1;
            let kl = self.score(&tenant, prompt, &answer)?.kl;
            negative.kl += kl.iter().sum::<f64>();
            negative.n_kl += kl.len();
            done();
        }
        Ok(negative)
    }

    fn score(&mut self, tenant: &TenantLearning, question: &str, answer: &[u32]) -> Result<AnswerScore> {
        let prompt = self.engine.encode_prompt(question, false)?;
        Ok(score_answer(
            &mut self.engine,
            &self.learning,
            tenant,
            Question { prompt: &prompt, text: Some(question) },
            answer,
        )?)
    }

    fn ask(&mut self, tenant: Option<&Arc<TenantLearning>>, question: &str, n: usize) -> Result<String> {
        Ok(self.generate(tenant.map(|tenant| (tenant, None)), question, n)?.0.trim().to_owned())
    }

    /// Answers a question by the likeliest tokens.
    fn generate(
        &mut self,
        learns: Option<(&Arc<TenantLearning>, Option<&str>)>,
        question: &str,
        n: usize,
    ) -> Result<(String, Vec<u32>)> {
        if self.cancel.is_cancelled() {
            return Err(Error::Interrupted);
        }
        let request = GenerateRequest {
            prompt: self.engine.encode_prompt(question, false)?,
            max_tokens: Some(n),
            sampling: SamplingParams::greedy(),
            logits_processor: learns.map(|(tenant, id)| tenant.logits_processor(Task::of(question), id)),
            cancel: self.cancel.clone(),
            ..GenerateRequest::default()
        };
        let summary = answer(&mut self.engine, &request, &mut |_| Ok(()))?;
        Ok((summary.text, summary.tokens))
    }
}

fn json_of(model: &str, outcomes: &[(&'static str, Outcome)], unchanged: Share, negative: &Negative) -> Value {
    let facts = outcomes.iter().map(|(name, outcome)| {
        let Outcome { exact, paraphrase, neighbour } = outcome;
        let shares =
            json!({ "exact": exact.json(), "paraphrase": paraphrase.json(), "neighbour_changed": neighbour.json() });
        ((*name).to_owned(), shares)
    });
    json!({
        "model": model,
        "facts": facts.collect::<serde_json::Map<_, _>>(),
        "unrelated_unchanged": unchanged.json(),
        "negative": {
            "lowered": negative.lowered.json(),
            "log_p_change": negative.change / negative.lowered.1.max(1) as f64,
            "kl_unrelated": negative.kl / negative.n_kl.max(1) as f64,
        },
    })
}

fn text_of(outcomes: &[(&'static str, Outcome)], unchanged: Share, negative: &Negative) -> String {
    let mut rows = vec![["facts", "same words", "other words", "neighbour changed"].map(str::to_owned).to_vec()];
    rows.extend(outcomes.iter().filter(|(_, outcome)| outcome.exact.1 > 0).map(|(name, outcome)| {
        let Outcome { exact, paraphrase, neighbour } = outcome;
        [(*name).to_owned(), exact.text(), paraphrase.text(), neighbour.text()].to_vec()
    }));
    format!(
        "{}{} unrelated answers unchanged\n{} wrong answers less likely, by {:.2} nats a token; KL elsewhere {:.4} nats\n",
        table(&rows, &[]),
        unchanged.text(),
        negative.lowered.text(),
        -negative.change / negative.lowered.1.max(1) as f64,
        negative.kl / negative.n_kl.max(1) as f64,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_a_hundred_and_unlike_each_other() {
        let facts: Vec<Fact> = FACTS.lines().map(|line| serde_json::from_str(line).expect("a fact")).collect();
        let mut questions: Vec<_> = facts
            .iter()
            .flat_map(|fact| [&fact.question, &fact.paraphrase, &fact.neighbour])
            .map(String::as_str)
            .chain(UNRELATED.lines())
            .collect();
        questions.sort_unstable();
        let n = questions.len();
        questions.dedup();
        assert_eq!((facts.len(), UNRELATED.lines().count(), questions.len()), (100, 200, n));
        assert_eq!(facts.iter().filter(|fact| fact.split == "test").count(), 70);
        assert_eq!(facts.iter().filter(|fact| fact.named).count(), 80);
    }
}
