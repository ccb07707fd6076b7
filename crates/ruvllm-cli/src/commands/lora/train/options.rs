//! Options of a training.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{ModelArgs, OutputArgs};
use ruvllm_cli_tools::check;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::machine::MAX_THREADS;
use ruvllm_cli_tools::values::count;
use ruvllm_lora::train::{AdamOptions, Filter, Loss, Schedule, TargetSet, TrainOptions};

use super::CHECKPOINT;

const EXAMPLES: &str = "\
Examples:
  ruvllm lora train --data dates.jsonl --out ./dates --epochs 2 --answers 50
  ruvllm lora train --data style.jsonl --out ./style --minutes 5 --targets qv --rank 4
  ruvllm lora train --data pairs.jsonl --out ./polite --loss dpo --lr 1e-4
  ruvllm run --lora ./dates --prompt \"March 5, 2021\"

The data are JSON lines, a record each: {\"messages\": [...]} (answers of the assistant are learned, by the
model's chat template), {\"prompt\", \"completion\"} or {\"text\"} (as they are), {\"prompt\", \"chosen\",
\"rejected\"} or {\"prompt\", \"completions\": [{\"text\", \"score\"}]} (dpo, grpo), {\"anchor\", \"positive\",
\"negative\"} (triplet, infonce; for embedding models). 'quality', a number, may stand in any.

Ctrl-C stops after the step at hand and keeps a checkpoint, from which --resume goes on to the same bytes.";

/// Options of `ruvllm lora train`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(in crate::commands::lora) struct TrainArgs {
    /// The examples: JSON lines
    #[arg(long, value_name = "FILE")]
    pub(super) data: PathBuf,
    /// Where to write the adapter: a PEFT folder
    #[arg(long, value_name = "DIR")]
    pub(super) out: PathBuf,
    /// Loss that is made small
    #[arg(long, value_enum, default_value_t = LossArg::NextToken)]
    pub(super) loss: LossArg,
    /// Which layers are adapted
    #[arg(long, value_enum, default_value_t = TargetsArg::All)]
    pub(super) targets: TargetsArg,
    /// Rank of the adapter
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub(super) rank: usize,
    /// What the adapter adds is multiplied with this over the rank [default: twice the rank]
    #[arg(long, value_name = "A")]
    pub(super) alpha: Option<f32>,
    /// Passes over the examples
    #[arg(long, value_name = "N", default_value_t = 1.0, conflicts_with_all = ["steps", "minutes"])]
    pub(super) epochs: f64,
    /// Steps in all
    #[arg(long, value_name = "N", value_parser = count::<1, { u32::MAX as usize }>, conflicts_with = "minutes")]
    pub(super) steps: Option<usize>,
    /// Minutes of training; how far it comes depends on the machine
    #[arg(long, value_name = "M")]
    pub(super) minutes: Option<f64>,
    /// Examples that are run together
    #[arg(long, value_name = "N", default_value = "8", value_parser = count::<1, 4096>)]
    pub(super) batch: usize,
    /// Runs that make a step
    #[arg(long, value_name = "N", default_value = "1", value_parser = count::<1, 4096>)]
    pub(super) accumulate: usize,
    /// The highest learning rate
    #[arg(long, value_name = "R", default_value_t = 5e-4)]
    pub(super) lr: f64,
    /// Its course
    #[arg(long, value_enum, default_value_t = ScheduleArg::Cosine)]
    pub(super) schedule: ScheduleArg,
    /// The share of all steps in which the rate rises
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    pub(super) warm_up: f64,
    /// The longest gradient
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    pub(super) clip: f64,
    /// Weight decay
    #[arg(long, value_name = "W", default_value_t = 0.01)]
    pub(super) decay: f64,
    /// How much leaving the base costs in dpo [default: 0.1] and grpo [default: 0.04]
    #[arg(long, value_name = "B")]
    pub(super) beta: Option<f64>,
    /// By how much triplet wants the positive nearer
    #[arg(long, value_name = "M", default_value_t = 0.3)]
    pub(super) margin: f64,
    /// The temperature of infonce
    #[arg(long, value_name = "T", default_value_t = 0.05)]
    pub(super) temperature: f64,
    /// Decides how the factors begin, the order of the examples and the split
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(super) seed: u64,
    #[command(flatten)]
    pub(super) keep: KeepArgs,
    /// Answer so many test prompts before and behind, and count those that are as in the data
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) answers: usize,
    /// Steps between checkpoints
    #[arg(long, value_name = "N", default_value = "50", value_parser = count::<1, { u32::MAX as usize }>)]
    pub(super) checkpoint_every: usize,
    /// Go on from the checkpoint in DIR
    #[arg(long)]
    pub(super) resume: bool,
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Threads [default: one a core this process may use]
    #[arg(long, value_name = "N", value_parser = count::<1, MAX_THREADS>, help_heading = "Model")]
    pub(super) threads: Option<usize>,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// Which records are used for what.
#[derive(Args, Debug)]
pub(super) struct KeepArgs {
    /// The share of records that is held back to look at after training
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    pub(super) val: f64,
    /// The share of records that is held back for the last word
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    pub(super) test: f64,
    /// Drop longer records
    #[arg(long, value_name = "N", default_value = "512", value_parser = count::<4, 65536>)]
    pub(super) max_tokens: usize,
    /// Drop records of which fewer characters would be learned
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) min_chars: usize,
    /// Drop records whose 'quality' is lower
    #[arg(long, value_name = "Q", default_value_t = 0.0)]
    pub(super) min_quality: f64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum LossArg {
    /// Predict each token
    NextToken,
    /// Direct preference optimisation
    Dpo,
    /// Completions weighted within their group
    Grpo,
    /// Vectors: positive nearer than negative
    Triplet,
    /// Vectors: positive among all others
    Infonce,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum TargetsArg {
    /// Queries and values
    Qv,
    /// All of attention
    Attn,
    /// Every layer
    All,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum ScheduleArg {
    /// As it is
    Constant,
    /// Down along half a cosine
    Cosine,
    /// Up and down
    OneCycle,
}

impl TrainArgs {
    /// Checks what can be checked without the data and the model.
    pub(super) fn check(&self, app: &App) -> Result<()> {
        if ![self.keep.val, self.keep.test].iter().all(|share| (0.0..1.0).contains(share)) {
            return Err(Error::usage("--val and --test are shares from 0 to 1"));
        }
        if self.minutes.is_some_and(|minutes| !(minutes > 0.0 && minutes < 1e6))
            || !(self.epochs > 0.0 && self.epochs < 1e6)
        {
            return Err(Error::usage("--minutes and --epochs must be positive"));
        }
        self.options(1).check()?;
        check::readable(&self.data)?;
        check::writable_folder(&self.out)?;
        if self.resume {
            check::readable(&self.out.join(CHECKPOINT))?;
        }
        Ok(app.store().check(&self.model.model)?)
    }

    pub(super) fn filter(&self) -> Filter {
        let KeepArgs { max_tokens, min_chars, min_quality, .. } = self.keep;
        Filter { n_chars_min: min_chars, n_tokens_max: max_tokens, quality_min: min_quality }
    }

    pub(super) fn loss(&self) -> Loss {
        match self.loss {
            LossArg::NextToken => Loss::NextToken,
            LossArg::Dpo => Loss::Dpo { beta: self.beta.unwrap_or(0.1) },
            LossArg::Grpo => Loss::Grpo { clip: 0.2, beta: self.beta.unwrap_or(0.04) },
            LossArg::Triplet => Loss::Triplet { margin: self.margin },
            LossArg::Infonce => Loss::InfoNce { temperature: self.temperature },
        }
    }

    pub(super) fn options(&self, n_examples: usize) -> TrainOptions {
        let options = TrainOptions {
            targets: match self.targets {
                TargetsArg::Qv => TargetSet::QueriesAndValues,
                TargetsArg::Attn => TargetSet::Attention,
                TargetsArg::All => TargetSet::All,
            },
            first_block: 0,
            rank: self.rank,
            alpha: self.alpha.unwrap_or(2.0 * self.rank as f32),
            loss: self.loss(),
            n_steps: 1,
            n_batch: self.batch,
            n_accumulate: self.accumulate,
            rate: self.lr,
            schedule: match self.schedule {
                ScheduleArg::Constant => Schedule::Constant,
                ScheduleArg::Cosine => Schedule::Cosine,
                ScheduleArg::OneCycle => Schedule::OneCycle,
            },
            warm_up: self.warm_up,
            adam: AdamOptions { clip: self.clip, decay: self.decay, ..AdamOptions::default() },
            seed: self.seed,
        };
        let n_steps = match (self.steps, self.minutes) {
            (Some(n_steps), _) => n_steps as u64,
            (None, Some(_)) => u64::from(u32::MAX),
            (None, None) => options.steps_of(self.epochs, n_examples),
        };
        TrainOptions { n_steps, ..options }
    }
}
