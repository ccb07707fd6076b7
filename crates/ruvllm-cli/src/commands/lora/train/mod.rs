//! `ruvllm lora train`: an adapter from examples.

mod options;

pub(super) use options::TrainArgs;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::Instant;

use indicatif::ProgressBar;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::interrupt;
use ruvllm_cli_tools::output::{Ui, count as people, print_json, print_line};
use ruvllm_engine::{AdapterSet, CancelToken, Engine, FactorFormat, GenerateRequest, LoadOptions, SamplingParams};
use ruvllm_kvcache::NamespaceBuilder;
use ruvllm_lora::format::peft;
use ruvllm_lora::train::{self, Dataset, Example, Prompt, Split, SplitShares, TrainRecord, Trainer};
use serde_json::{Value, json};

use crate::commands::lora::cannot_write;

/// The file of a training under way, and what tells how one went.
const CHECKPOINT: &str = "checkpoint.safetensors";
const REPORT: &str = "train_report.json";

/// What is learned from and what is held back.
struct Lessons {
    split: Split<(TrainRecord, Example)>,
    /// A hash of the records and of how they were dealt out.
    content: NamespaceBuilder,
    dropped: train::Dropped,
}

/// What was measured of the held-back records, at one time.
#[derive(Default)]
struct Measured {
    val: Option<f64>,
    test: Option<f64>,
    /// Answers as in the data, and all.
    answers: Option<(usize, usize)>,
}

/// Losses measured before training and after it.
struct Change {
    before: Measured,
    behind: Measured,
}

impl Measured {
    fn json(&self) -> Value {
        let answers = self.answers.map(|(n_right, n)| json!({ "right": n_right, "of": n }));
        json!({ "val_loss": self.val, "test_loss": self.test, "answers": answers })
    }
}

impl TrainArgs {
    /// Trains and writes the adapter.
    ///
    /// # Errors
    /// The data are no records, the model cannot be trained, an option makes no sense, or Ctrl-C.
    pub(super) fn run(&self, app: &App) -> Result<()> {
        let cancel = CancelToken::default();
        self.check(app)?;
        let mut data = self.read()?;
        let path = app.store().locate(&self.model.model, true)?;
        let n_threads = app.settings.threads(self.threads);
        let load = LoadOptions {
            isa: app.settings.isa,
            n_threads,
            n_ctx: Some(2 * self.keep.max_tokens),
            prefix_cache: false,
            ..LoadOptions::default()
        };
        let mut engine = app.load(&path, &load)?;
        train::use_threads(n_threads)?;
        let lessons = self.deal(&engine, &mut data)?;
        let _guard = interrupt::cancels(&cancel);
        let mut trainer = self.trainer(app, &engine, &lessons)?;
        let checkpoint = self.out.join(CHECKPOINT);
        std::fs::create_dir_all(&self.out).map_err(cannot_write(&self.out))?;
        if self.resume {
            trainer.resume(&checkpoint)?;
            app.ui.note(&format!("goes on behind step {}", trainer.n_steps()));
        }
        let before = self.measure(app, &mut engine, &trainer, &lessons, None, &cancel)?;
        self.train(&app.ui, &mut trainer, &checkpoint, &cancel)?;
        let name = self.out.file_name().map_or_else(|| "adapter".into(), |name| name.to_string_lossy());
        let adapter = trainer.adapter(&name)?;
        peft::write(&adapter, trainer.model().targets().facts(), &self.out)?;
        let bound = engine.adapter_loader()?.bind(&adapter, FactorFormat::F32)?;
        let set = AdapterSet::new(vec![(bound, 1.0)])?;
        let behind = self.measure(app, &mut engine, &trainer, &lessons, Some(&set), &cancel)?;
        let change = Change { before, behind };
        let report = self.report(&trainer, &lessons, &change, n_threads);
        let to = self.out.join(REPORT);
        std::fs::write(&to, format!("{report:#}\n")).map_err(cannot_write(&to))?;
        // What a training needs to go on is of no use once it is over.
        let _ = std::fs::remove_file(&checkpoint);
        self.tell(&trainer, &change, &report)
    }

    fn read(&self) -> Result<Dataset> {
        let file = File::open(&self.data).map_err(|error| Error::io("read", &self.data, &error))?;
        let data = Dataset::read(BufReader::new(file), &self.filter());
        data.map_err(|error| Error::failure(format_args!("{}: {error}", self.data.display())))
    }

    /// Turns the records into tokens and deals them out.
    fn deal(&self, engine: &Engine, data: &mut Dataset) -> Result<Lessons> {
        let within = |error| Error::failure(format_args!("{}: {error}", self.data.display()));
        let examples = data.encode(&ruvllm_engine::TextEncoder(engine.text()?), &self.filter()).map_err(within)?;
        let loss = self.loss();
        for ((line, _), example) in data.records.iter().zip(&examples) {
            let checked = loss.check(example);
            checked.map_err(|error| Error::failure(format_args!("{}: line {line}: {error}", self.data.display())))?;
        }
        let records = std::mem::take(&mut data.records).into_iter().map(|(_, record)| record);
        let shares = (self.keep.val, self.keep.test);
        let dealt = format!("{shares:?} {:?}", self.filter());
        let content = NamespaceBuilder::new("training 1").part("data", &data.content).part("dealt", dealt.as_bytes());
        let split = Split::new(
            records.zip(examples).collect(),
            self.seed,
            SplitShares { val: self.keep.val, test: self.keep.test },
        )?;
        Ok(Lessons { split, content, dropped: data.dropped })
    }

    /// Reads the model's weights and makes everything ready.
    fn trainer(&self, app: &App, engine: &Engine, lessons: &Lessons) -> Result<Trainer> {
        let examples: Vec<Example> = lessons.split.train.iter().map(|(_, example)| example.clone()).collect();
        let options = self.options(examples.len());
        let bar = app.ui.steps_bar("weights", 0);
        let model = engine.train_model(options.scale(), &mut |progress| {
            bar.set_length(progress.n_total >> 20);
            bar.set_position(progress.n_done >> 20);
        });
        bar.finish_and_clear();
        let content = lessons.content.clone().part("model", &engine.identity()?).identity();
        Ok(Trainer::new(model?, examples, options, &content)?)
    }

    /// Goes all steps. Ctrl-C leaves a checkpoint.
    fn train(&self, ui: &Ui, trainer: &mut Trainer, checkpoint: &Path, cancel: &CancelToken) -> Result<()> {
        let n_steps = trainer.options().n_steps;
        let seconds_max = self.minutes.map(|minutes| 60.0 * minutes);
        let bar = match seconds_max {
            Some(seconds) => ui.steps_bar("training", seconds as u64),
            None => ui.steps_bar("training", n_steps),
        };
        bar.set_position(trainer.n_steps());
        bar.reset_eta();
        let mut mean = None;
        while trainer.n_steps() < n_steps {
            let done = seconds_max.map(|seconds| trainer.seconds() / seconds);
            if done.is_some_and(|done| done >= 1.0) {
                break;
            }
            let report = trainer.step(done)?;
            // A mean over some twenty steps is steadier than one step's.
            let loss = mean.map_or(report.loss, |mean: f64| 0.95 * mean + 0.05 * report.loss);
            mean = Some(loss);
            let tps = report.n_tokens as f64 / report.seconds;
            bar.set_message(format!("loss {loss:.4}, rate {:.1e}, {tps:.0} tok/s", report.rate));
            bar.set_position(seconds_max.map_or(report.n_steps, |_| trainer.seconds() as u64));
            if cancel.is_cancelled() {
                trainer.save(checkpoint)?;
                bar.finish_and_clear();
                eprintln!("stopped at step {}; --resume goes on from there", trainer.n_steps());
                return Err(Error::Interrupted);
            }
            if report.n_steps.is_multiple_of(self.checkpoint_every as u64) && report.n_steps < n_steps {
                trainer.save(checkpoint)?;
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Looks at the held-back records, with the base or with what was trained.
    fn measure(
        &self,
        app: &App,
        engine: &mut Engine,
        trainer: &Trainer,
        lessons: &Lessons,
        adapters: Option<&AdapterSet>,
        cancel: &CancelToken,
    ) -> Result<Measured> {
        let Split { val, test, .. } = &lessons.split;
        let mut measured = Measured::default();
        for (part, place) in [(val, &mut measured.val), (test, &mut measured.test)] {
            let examples: Vec<Example> = part.iter().map(|(_, example)| example.clone()).collect();
            let bar = app.ui.steps_bar("held back", examples.len() as u64);
            *place = trainer.evaluate(&examples, adapters.is_some(), &mut |n_done| {
                bar.set_position(n_done as u64);
                !cancel.is_cancelled()
            })?;
            bar.finish_and_clear();
        }
        let asked: Vec<(Prompt, &str)> =
            test.iter().filter_map(|(record, _)| record.question()).take(self.answers).collect();
        if !asked.is_empty() {
            let bar = app.ui.steps_bar("answers", asked.len() as u64);
            measured.answers = Some((n_right(engine, &asked, adapters, &bar, cancel)?, asked.len()));
            bar.finish_and_clear();
        }
        match cancel.is_cancelled() {
            true => Err(Error::Interrupted),
            false => Ok(measured),
        }
    }

    fn report(&self, trainer: &Trainer, lessons: &Lessons, change: &Change, n_threads: usize) -> Value {
        let Split { train, val, test } = &lessons.split;
        let train::Dropped { n_short, n_long, n_duplicate, n_poor } = lessons.dropped;
        let mut options = trainer.options().json();
        options["steps"] = json!(trainer.n_steps());
        json!({
            "model": self.model.model, "data": self.data, "path": self.out,
            "records": { "train": train.len(), "val": val.len(), "test": test.len() },
            "dropped": { "short": n_short, "long": n_long, "duplicate": n_duplicate, "poor": n_poor },
            "options": options, "minutes": self.minutes, "threads": n_threads, "seconds": trainer.seconds(),
            "parameters": trainer.factors().n_params(), "before": change.before.json(), "after": change.behind.json(),
            "losses": trainer.losses(),
        })
    }

    fn tell(&self, trainer: &Trainer, Change { before, behind }: &Change, report: &Value) -> Result<()> {
        if self.output.json {
            return print_json(report);
        }
        let n_params = people(trainer.factors().n_params() as u64);
        let (n_steps, seconds) = (trainer.n_steps(), trainer.seconds());
        print_line(&format!("wrote {}: {n_params} values, {n_steps} steps in {seconds:.0} s", self.out.display()))?;
        let losses = [("val", before.val, behind.val), ("test", before.test, behind.test)];
        for (what, before, behind) in losses {
            if let (Some(before), Some(behind)) = (before, behind) {
                print_line(&format!("{what} loss {before:.4} before, {behind:.4} with the adapter"))?;
            }
        }
        if let (Some((before, n)), Some((behind, _))) = (before.answers, behind.answers) {
            print_line(&format!("{before} of {n} answers right before, {behind} with the adapter"))?;
        }
        Ok(())
    }
}

/// Returns how many prompts are answered as expected, white space at the ends aside.
fn n_right(
    engine: &mut Engine,
    asked: &[(Prompt, &str)],
    adapters: Option<&AdapterSet>,
    bar: &ProgressBar,
    cancel: &CancelToken,
) -> Result<usize> {
    let (mut n_right, start) = (0, Instant::now());
    for (i, (prompt, expected)) in asked.iter().enumerate() {
        let prompt = match prompt {
            // As they are read for training.
            Prompt::Text(text) => engine.tokenizer()?.encode_prompt(text, false)?,
            Prompt::Messages(messages) => engine.encode_chat(messages, true)?,
        };
        let n_expected = engine.encode_prompt(expected, true)?.len();
        let request = GenerateRequest {
            prompt,
            max_tokens: Some(2 * n_expected + 8),
            sampling: SamplingParams::greedy(),
            adapters: adapters.cloned().unwrap_or_default(),
            cancel: cancel.clone(),
            ..GenerateRequest::default()
        };
        let answer = engine.generate(&request)?.for_each_token(|_| {})?;
        n_right += usize::from(answer.text.trim() == expected.trim());
        bar.set_position(i as u64 + 1);
        bar.set_message(format!("answers, {n_right} right, {:.0} s", start.elapsed().as_secs_f64()));
        if cancel.is_cancelled() {
            break;
        }
    }
    Ok(n_right)
}
