//! Files of outcomes: queries, and how good each model's answer was and what it cost.

use std::collections::BTreeSet;
use std::path::Path;

use clap::ValueEnum;
use ruvllm_learning::EmbedderName;
use ruvllm_router::evaluate::Answers;
use ruvllm_router::roles::group_number;
use ruvllm_router::{Model, Outcome, Rows, features};
use serde_json::Value;

use crate::app::App;
use crate::error::{Error, Result};
use crate::routing::embed_all;

/// A file of outcomes.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcomes {
    /// The models, by name, with the mean cost of an answer.
    pub models: Vec<Model>,
    /// The queries.
    pub prompts: Vec<String>,
    /// Quality of each model's answer: `[n, n_models]`.
    pub qualities: Vec<Vec<f32>>,
    /// Cost of each model's answer: `[n, n_models]`.
    pub costs: Vec<Vec<f32>>,
    /// Group of each query.
    pub groups: Vec<u64>,
}

/// Grouping of queries: a group is never both learned from and asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Grouping {
    /// What has the same "template", or else "subject": measures queries of new wordings
    Template,
    /// What has the same "subject": measures queries of new subjects
    Subject,
    /// The same prompt only: measures new queries like the known ones
    Prompt,
}

/// Reads lines `{"prompt", "models": {NAME: {"quality", "cost"}}}` as `ruvllm route collect` writes them, or
/// `{"prompt", "weak", "strong"}`, with a `"template"` or `"subject"` where some belong together.
///
/// # Errors
/// The file cannot be read, or a line is something else.
pub fn read(path: &Path, grouping: Grouping) -> Result<Outcomes> {
    let text = crate::text_files::read_text(path)?;
    let mut all = Outcomes { models: vec![], prompts: vec![], qualities: vec![], costs: vec![], groups: vec![] };
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |why: &str| Error::failure(format_args!("{} line {}: {why}", path.display(), i + 1));
        let line: Value = serde_json::from_str(line).map_err(|error| wrong(&error.to_string()))?;
        let prompt = line["prompt"].as_str().ok_or_else(|| wrong("there is no \"prompt\""))?;
        let answered =
            answered(&line).ok_or_else(|| wrong("there are neither \"models\" nor \"weak\" and \"strong\""))?;
        if all.models.is_empty() {
            all.models = answered.iter().map(|(name, ..)| Model { name: name.clone(), cost: 0.0 }).collect();
        }
        if !all.models.iter().map(|model| &model.name).eq(answered.iter().map(|(name, ..)| name)) {
            return Err(wrong("the models are others than before"));
        }
        if let Some((name, quality, _)) =
            answered.iter().find(|(_, quality, cost)| !(0.0..=1.0).contains(quality) || cost.is_nan() || *cost < 0.0)
        {
            return Err(wrong(&format!("the quality {quality} of '{name}' is not from 0 to 1, or its cost below 0")));
        }
        all.costs.push(answered.iter().map(|(_, _, cost)| *cost as f32).collect());
        all.qualities.push(answered.iter().map(|(_, quality, _)| *quality as f32).collect());
        let group = match grouping {
            Grouping::Template => line["template"].as_str().or(line["subject"].as_str()),
            Grouping::Subject => line["subject"].as_str(),
            Grouping::Prompt => Some(prompt),
        };
        all.groups.push(group.map_or(i as u64, group_number));
        all.prompts.push(prompt.to_owned());
    }
    if all.prompts.is_empty() {
        return Err(Error::failure(format_args!("{} has no outcomes", path.display())));
    }
    let n = all.prompts.len() as f64;
    for (i, model) in all.models.iter_mut().enumerate() {
        model.cost = (all.costs.iter().map(|row| f64::from(row[i])).sum::<f64>() / n) as f32;
    }
    Ok(all)
}

/// Returns each model's name, quality and cost, by name; of a weak and a strong model in this order.
fn answered(line: &Value) -> Option<Vec<(String, f64, f64)>> {
    let quality = |value: &Value| value.as_bool().map(|right| f64::from(u8::from(right))).or(value.as_f64());
    if let Some(models) = line["models"].as_object() {
        let of = |(name, model): (&String, &Value)| {
            Some((name.clone(), quality(&model["quality"])?, model["cost"].as_f64()?))
        };
        let mut all = models.iter().map(of).collect::<Option<Vec<_>>>()?;
        all.sort_by(|a, b| a.0.cmp(&b.0));
        return Some(all).filter(|all| !all.is_empty());
    }
    // Without costs: the strong one costs what RouteLLM counts, one call.
    let of = |name: &str, cost| Some((name.to_owned(), quality(&line[name])?, cost));
    Some(vec![of("weak", 0.0)?, of("strong", 1.0)?])
}

impl Outcomes {
    /// Returns the names of the models.
    pub fn names(&self) -> Vec<&str> {
        self.models.iter().map(|model| model.name.as_str()).collect()
    }

    /// Returns how good the models' answers were and what they cost.
    ///
    /// # Errors
    /// A number is not finite.
    pub fn answers(&self) -> Result<Answers> {
        let rows = |of: &[Vec<f32>]| {
            let mut rows = Rows::new(self.models.len());
            of.iter().try_for_each(|row| rows.push(row)).map_err(Error::failure)?;
            Ok::<_, Error>(rows)
        };
        Ok(Answers { qualities: rows(&self.qualities)?, costs: rows(&self.costs)? })
    }

    /// Returns the embeddings of the prompts: `[n, dim]`.
    ///
    /// # Errors
    /// As [`embed_all`].
    pub fn embeddings(&self, app: &App, embedder: &EmbedderName) -> Result<Rows> {
        let mut rows = Rows::new(embedder.dim());
        let texts = self.prompts.iter().map(String::as_str);
        embed_all(app, embedder, texts, &mut |vector| rows.push(&vector).map_err(Error::failure))?;
        Ok(rows)
    }

    /// Returns what a selector learns from.
    pub fn for_training(&self, embeddings: &Rows) -> Vec<Outcome> {
        let outcome = |(i, prompt): (usize, &String)| Outcome {
            query: [&features::of(prompt)[..], embeddings.row(i)].concat(),
            group: self.groups[i],
            qualities: self.qualities[i].iter().copied().map(Some).collect(),
            settings: None,
        };
        self.prompts.iter().enumerate().map(outcome).collect()
    }

    /// Returns how many groups there are.
    pub fn n_groups(&self) -> usize {
        self.groups.iter().collect::<BTreeSet<_>>().len()
    }
}
