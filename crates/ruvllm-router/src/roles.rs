//! Classifier of tasks into thirteen roles.
//!
//! The crate brings a set of 780 prompts, 60 a role, written for it ([`examples`]): twelve topics (accounts, payments,
//! storage, …), in each of which every role has five prompts of different wording and length. A topic is a group that a
//! test never divides, so no subject gives a role away. Some prompts could go to a second role; they say so (`also`).
//!
//! [`RoleClassifier`] is softmax regression over the embedding, the 128 features and hashed words; its probabilities
//! are calibrated, and below a threshold it abstains. The threshold is the least that gives the wanted accuracy on
//! topics that were left out.
//!
//! ```
//! use ruvllm_router::roles::{Role, RoleClassifier, RoleOptions, examples};
//! use ruvllm_router::{HashedWords, Rows};
//!
//! // Without a model: hashed words in place of an embedding.
//! let words = HashedWords::new(256);
//! let some: Vec<_> = examples().into_iter().step_by(3).collect();
//! let mut embeddings = Rows::new(256);
//! some.iter().try_for_each(|example| embeddings.push(&words.vector(&example.prompt)))?;
//! let classifier = RoleClassifier::train(&some, &embeddings, &RoleOptions::default())?;
//!
//! let task = "Write unit tests for the date parser, edge cases included.";
//! let verdict = classifier.classify(task, &words.vector(task))?;
//! assert_eq!(verdict.ranked[0].0, Role::Tester);
//! # Ok::<(), ruvllm_router::RouterError>(())
//! ```

#[cfg(test)]
mod tests;

use serde_json::{Value, json};

use crate::embed::HashedWords;
use crate::error::{RouterError, data, invalid, shape};
use crate::evaluate::{grouped_folds, softmax_temperature_of};
use crate::features::{self, N_FEATURES};
use crate::linear::{Link, Logistic};
use crate::math::{argmax, softmax};
use crate::rows::{Rows, Scaler};
use crate::state::{Reader, Writer};

/// Who should take a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Writes new code.
    Coder,
    /// Finds out what is known, and compares.
    Researcher,
    /// Judges code that somebody else wrote.
    Reviewer,
    /// Writes and plans tests.
    Tester,
    /// Decides on structure, boundaries, technology.
    Architect,
    /// Models threats and designs defences.
    SecurityArchitect,
    /// Finds the cause of a fault.
    Debugger,
    /// Writes for readers: guides, handbooks, comments.
    Documenter,
    /// Changes structure and keeps behaviour.
    Refactorer,
    /// Makes things faster, smaller, cheaper.
    Optimizer,
    /// Builds, deploys, monitors.
    Devops,
    /// Writes references of interfaces.
    ApiDocs,
    /// Orders work: steps, estimates, schedules.
    Planner,
}

/// Roles with their names, in the order of the enumeration.
const ROLES: [(Role, &str); N_ROLES] = [
    (Role::Coder, "coder"),
    (Role::Researcher, "researcher"),
    (Role::Reviewer, "reviewer"),
    (Role::Tester, "tester"),
    (Role::Architect, "architect"),
    (Role::SecurityArchitect, "security-architect"),
    (Role::Debugger, "debugger"),
    (Role::Documenter, "documenter"),
    (Role::Refactorer, "refactorer"),
    (Role::Optimizer, "optimizer"),
    (Role::Devops, "devops"),
    (Role::ApiDocs, "api-docs"),
    (Role::Planner, "planner"),
];

/// Number of roles.
pub const N_ROLES: usize = 13;

impl Role {
    /// Returns every role, in order.
    pub fn all() -> impl ExactSizeIterator<Item = Role> {
        ROLES.iter().map(|(role, _)| *role)
    }

    /// Returns the name, such as `security-architect`.
    pub fn name(self) -> &'static str {
        ROLES[self as usize].1
    }

    /// Returns the role of a name.
    pub fn from_name(name: &str) -> Option<Role> {
        ROLES.iter().find(|(_, known)| *known == name).map(|(role, _)| *role)
    }

    /// Returns the place of the role in the order: 0 to 12.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// A prompt and the role that should take it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleExample {
    /// Group, such as a topic: never divided between learning and testing.
    pub group: String,
    /// The role.
    pub role: Role,
    /// Roles that could take it as well.
    pub also: Vec<Role>,
    /// The text.
    pub prompt: String,
}

/// Returns the set that comes with the crate: 780 prompts in twelve groups.
pub fn examples() -> Vec<RoleExample> {
    read_examples(include_str!("../data/roles.jsonl")).expect("the crate's own set is sound; a test reads it")
}

/// Reads examples, one a line: `{"group": …, "role": …, "prompt": …}`, and `"also": […]` where there are more roles.
///
/// # Errors
/// A line is no such object, or names no role; kind `Invalid`.
pub fn read_examples(text: &str) -> Result<Vec<RoleExample>, RouterError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines.map(|(at, line)| read_example(line).ok_or_else(|| not_an_example(at + 1))).collect()
}

fn not_an_example(line: usize) -> RouterError {
    let names: Vec<&str> = Role::all().map(Role::name).collect();
    let form = "{\"group\": …, \"role\": …, \"prompt\": …}";
    invalid(format!("line {line} is not {form} with a role of {}", names.join(", ")))
}

fn read_example(line: &str) -> Option<RoleExample> {
    let object: Value = serde_json::from_str(line).ok()?;
    let text = |key: &str| object[key].as_str().map(str::to_owned);
    let role = |value: &Value| value.as_str().and_then(Role::from_name);
    let also = match &object["also"] {
        Value::Null => Vec::new(),
        roles => roles.as_array()?.iter().map(role).collect::<Option<_>>()?,
    };
    Some(RoleExample { group: text("group")?, role: role(&object["role"])?, also, prompt: text("prompt")? })
}

/// Options of training a classifier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoleOptions {
    /// The weight of half the sum of the squared weights.
    pub l2: f32,
    /// The share of answers that shall be right; where it would not be, the classifier abstains.
    pub accuracy: f64,
    /// In how many parts the groups are divided to calibrate.
    pub n_folds: usize,
    /// Seed by which the parts are drawn.
    pub seed: u64,
}

impl Default for RoleOptions {
    /// Nine answers of ten right.
    fn default() -> RoleOptions {
        RoleOptions { l2: 0.01, accuracy: 0.9, n_folds: 6, seed: 1 }
    }
}

/// Verdict of the classifier on a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The role, or `None` where it is too uncertain.
    pub role: Option<Role>,
    /// Every role with its probability, most likely first.
    pub ranked: Vec<(Role, f32)>,
}

/// Tells the role of a task from its text and its embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RoleClassifier {
    n_embedding: usize,
    scaler: Scaler,
    model: Logistic,
    temperature: f32,
    threshold: f32,
}

/// Values of the vector of hashed words.
const N_HASHED: usize = 1024;

/// The spread of values after scaling: embedding, features, hashed words. All weights have the same penalty, so this
/// says how much each is trusted.
const SPREADS: [f32; 3] = [0.5, 0.3, 0.25];

const KIND: &str = "roles";

impl RoleClassifier {
    /// Trains on examples with their embeddings, `[n, n_embedding]`.
    ///
    /// # Errors
    /// Fewer than two examples, or not as many embeddings; kind `Data`.
    pub fn train(
        examples: &[RoleExample],
        embeddings: &Rows,
        options: &RoleOptions,
    ) -> Result<RoleClassifier, RouterError> {
        if examples.len() < 2 || examples.len() != embeddings.len() {
            let (n, m) = (examples.len(), embeddings.len());
            return Err(data(format!("{n} examples with {m} embeddings; training needs two or more of both")));
        }
        let n_embedding = embeddings.width();
        let (mut inputs, mut targets) = (Rows::new(n_embedding + N_FEATURES + N_HASHED), Rows::new(N_ROLES));
        for (example, embedding) in examples.iter().zip(embeddings.iter()) {
            inputs.push(&input_of(&example.prompt, embedding))?;
            let mut target = [0.0; N_ROLES];
            target[example.role.index()] = 1.0;
            targets.push(&target)?;
        }
        let scaler = Scaler::fit(&inputs, |i| {
            SPREADS[usize::from(i >= n_embedding) + usize::from(i >= n_embedding + N_FEATURES)]
        });
        let inputs = scaler.apply_all(&inputs);
        let left_out = left_out_logits(examples, &inputs, &targets, options)?;
        let temperature = softmax_temperature_of(&left_out);
        let threshold = threshold_of(&left_out, temperature, options.accuracy);
        let model = Logistic::fit(&inputs, &targets, Link::Softmax, options.l2)?;
        Ok(RoleClassifier { n_embedding, scaler, model, temperature, threshold })
    }

    /// Returns the role of a task, or that it is too uncertain.
    ///
    /// # Errors
    /// The embedding has another length than those of the training; kind `Shape`.
    pub fn classify(&self, text: &str, embedding: &[f32]) -> Result<Verdict, RouterError> {
        if embedding.len() != self.n_embedding {
            let (n, needed) = (embedding.len(), self.n_embedding);
            return Err(shape(format!("an embedding of {n} values; the roles were learned from {needed}")));
        }
        let mut shares = self.model.logits(&self.scaler.apply(&input_of(text, embedding)));
        shares.iter_mut().for_each(|logit| *logit /= self.temperature);
        softmax(&mut shares);
        let mut ranked: Vec<(Role, f32)> = Role::all().zip(shares).collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        Ok(Verdict { role: (ranked[0].1 >= self.threshold).then_some(ranked[0].0), ranked })
    }

    /// Returns the probability below which the classifier abstains.
    pub fn threshold(&self) -> f32 {
        self.threshold
    }

    /// Returns the classifier as bytes in the safetensors format.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        let n_in = self.model.n_in;
        writer.table("means", &[n_in], &self.scaler.means);
        writer.table("gains", &[n_in], &self.scaler.gains);
        writer.table("weights", &[N_ROLES, n_in], &self.model.weights);
        writer.table("biases", &[N_ROLES], &self.model.biases);
        writer.table("scalars", &[2], &[self.temperature, self.threshold]);
        let names: Vec<&str> = Role::all().map(Role::name).collect();
        writer.finish(&json!({"kind": KIND, "version": 1, "n_embedding": self.n_embedding, "roles": names}))
    }

    /// Reads what [`RoleClassifier::to_bytes`] wrote. The bytes may come from anywhere.
    ///
    /// # Errors
    /// They are no classifier of these roles, or contradict themselves; kinds `Invalid` and `Limit`.
    pub fn from_bytes(bytes: &[u8]) -> Result<RoleClassifier, RouterError> {
        let reader = Reader::new(bytes, KIND)?;
        if !reader.names("roles")?.iter().map(String::as_str).eq(Role::all().map(Role::name)) {
            return Err(invalid("the saved roles are not the thirteen of this version; train them anew"));
        }
        let n_embedding = reader.number("n_embedding", 1, 1 << 14)?;
        let n_in = n_embedding + N_FEATURES + N_HASHED;
        let scaler = Scaler { means: reader.table("means", &[n_in])?, gains: reader.table("gains", &[n_in])? };
        let weights = reader.table("weights", &[N_ROLES, n_in])?;
        let model = Logistic { link: Link::Softmax, n_in, weights, biases: reader.table("biases", &[N_ROLES])? };
        let scalars = reader.table("scalars", &[2])?;
        if scalars[0] <= 0.0 {
            return Err(invalid("saved roles have a temperature that is not above 0"));
        }
        Ok(RoleClassifier { n_embedding, scaler, model, temperature: scalars[0], threshold: scalars[1] })
    }
}

/// What is learned from: the embedding, the features, the hashed words.
fn input_of(text: &str, embedding: &[f32]) -> Vec<f32> {
    let mut input = embedding.to_vec();
    input.extend(features::of(text));
    input.extend(HashedWords::new(N_HASHED).vector(text));
    input
}

/// Returns each example's logits by a model that did not see its group, and its role.
fn left_out_logits(
    examples: &[RoleExample],
    inputs: &Rows,
    targets: &Rows,
    options: &RoleOptions,
) -> Result<Vec<(Vec<f32>, usize)>, RouterError> {
    let groups: Vec<u64> = examples.iter().map(|example| group_number(&example.group)).collect();
    let n_folds = options.n_folds.max(2);
    let folds = grouped_folds(&groups, n_folds, options.seed);
    let mut logits = vec![(Vec::new(), 0); examples.len()];
    for fold in 0..n_folds {
        let learned: Vec<usize> = (0..examples.len()).filter(|&i| folds[i] != fold).collect();
        let model = Logistic::fit(&inputs.pick(&learned), &targets.pick(&learned), Link::Softmax, options.l2)?;
        for i in (0..examples.len()).filter(|&i| folds[i] == fold) {
            logits[i] = (model.logits(inputs.row(i)), examples[i].role.index());
        }
    }
    Ok(logits)
}

/// Returns a number for a group's name, for [`grouped_folds`].
pub fn group_number(name: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name.as_bytes())
}

/// The least probability from which on as many answers are right as wanted; just above 1 if that is never so.
fn threshold_of(pairs: &[(Vec<f32>, usize)], temperature: f32, accuracy: f64) -> f32 {
    let answer = |(logits, role): &(Vec<f32>, usize)| {
        let mut shares: Vec<f32> = logits.iter().map(|logit| logit / temperature).collect();
        softmax(&mut shares);
        let best = argmax(&shares);
        (shares[best], best == *role)
    };
    let mut answers: Vec<(f32, bool)> = pairs.iter().map(answer).collect();
    answers.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut right, mut threshold) = (0usize, 1.0 + f32::EPSILON);
    for (n, (share, is_right)) in answers.iter().enumerate() {
        right += usize::from(*is_right);
        if right as f64 >= accuracy * (n + 1) as f64 {
            threshold = *share;
        }
    }
    threshold
}
