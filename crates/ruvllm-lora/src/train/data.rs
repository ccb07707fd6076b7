//! What is learned from: a file of JSON lines, read as untrusted, filtered, split by a seed, and turned into tokens.

use std::collections::HashSet;
use std::io::{BufRead, Read};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use ruvllm_kvcache::NamespaceBuilder;
use serde_json::{Map, Value, json};

use crate::error::{LoraError, LoraErrorKind, invalid, shown};

/// The longest line that is read, in bytes.
const LINE_BYTES_MAX: usize = 4 << 20;
/// Most lines that are read.
const N_LINES_MAX: usize = 1 << 22;
/// Most completions of one prompt.
const N_COMPLETIONS_MAX: usize = 64;

/// Prompt of a text, before what is learned.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A text as it is.
    Text(String),
    /// A conversation, for the model's chat template.
    Messages(Vec<Value>),
}

/// One line of the file.
#[derive(Clone, Debug, PartialEq)]
pub enum TrainRecord {
    /// `messages`: the answers of the assistant are learned.
    Chat(Vec<Value>),
    /// `text`: all of it is learned.
    Text(String),
    /// `prompt`, `completion`: the completion is learned.
    Completion(Prompt, String),
    /// `prompt`, `chosen`, `rejected`, or `prompt`, `completions` with `text` and `score` each: the better ones are preferred.
    Scored(Prompt, Vec<(String, f32)>),
    /// `anchor`, `positive`, and `negative` if there is one: vectors of the first two come together.
    Similar(String, String, Option<String>),
}

/// Turns texts into tokens. The engine has one for every model.
pub trait Encoder {
    /// Returns the tokens of a text, with those that begin one.
    ///
    /// # Errors
    /// The text cannot be encoded.
    fn text(&self, text: &str) -> Result<Vec<u32>, LoraError>;

    /// Returns the tokens of a conversation by the model's chat template; with `open`, up to where the assistant answers.
    ///
    /// # Errors
    /// The model has no template, or it refuses the conversation.
    fn chat(&self, messages: &[Value], open: bool) -> Result<Vec<u32>, LoraError>;

    /// Returns the token that ends an answer.
    fn end(&self) -> Option<u32>;

    /// Returns whether a token ends an answer.
    fn is_end(&self, token: u32) -> bool;
}

/// Tokens, and which of them are learned.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredSequence {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Whether each is predicted from those before it; never the first.
    pub is_scored: Vec<bool>,
}

impl ScoredSequence {
    /// Returns how many tokens are learned.
    pub fn n_scored(&self) -> usize {
        self.is_scored.iter().filter(|&&is_scored| is_scored).count()
    }
}

/// One record as tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// One for texts; the completions of a prompt; anchor, positive and negative.
    pub sequences: Vec<ScoredSequence>,
    /// Quality of each completion.
    pub scores: Vec<f32>,
}

impl Example {
    /// Returns its number of tokens.
    pub fn n_tokens(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.tokens.len()).sum()
    }
}

/// Filter of records that are dropped on purpose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Filter {
    /// Shorter records, counted in characters of what is learned.
    pub n_chars_min: usize,
    /// Longer sequences, counted in tokens.
    pub n_tokens_max: usize,
    /// Records whose `quality` is lower; those without one stay.
    pub quality_min: f64,
}

impl Default for Filter {
    fn default() -> Filter {
        Filter { n_chars_min: 1, n_tokens_max: 512, quality_min: 0.0 }
    }
}

/// Counts of dropped records, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Records whose learned part is too short.
    pub n_short: usize,
    /// Too many tokens.
    pub n_long: usize,
    /// Said before.
    pub n_duplicate: usize,
    /// Of low quality.
    pub n_poor: usize,
}

/// The records of a file.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Number of the line and what it holds.
    pub records: Vec<(usize, TrainRecord)>,
    /// Records of the file that were dropped.
    pub dropped: Dropped,
    /// A hash of all records.
    pub content: [u8; 32],
}

/// Shares of a data set that are not trained on, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplitShares {
    /// For validation.
    pub val: f64,
    /// For the test.
    pub test: f64,
}

/// Records for training, for looking at while training, and for the last word.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Split<T> {
    /// Records that are learned from.
    pub train: Vec<T>,
    /// Told apart while training.
    pub val: Vec<T>,
    /// Looked at once before and once behind.
    pub test: Vec<T>,
}

impl Dataset {
    /// Reads JSON lines. Empty lines are passed over.
    ///
    /// # Errors
    /// A line is no record; the error names it. Nothing is left.
    pub fn read(mut file: impl BufRead, filter: &Filter) -> Result<Dataset, LoraError> {
        let (mut records, mut dropped, mut seen) = (Vec::new(), Dropped::default(), HashSet::new());
        let (mut line, mut hash) = (Vec::new(), NamespaceBuilder::new("training data 1"));
        for number in 1.. {
            line.clear();
            let io = |error: std::io::Error| LoraError::new(LoraErrorKind::Io, format!("line {number}: {error}"));
            let n_bytes = (&mut file).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line).map_err(io)?;
            if n_bytes == 0 {
                break;
            }
            let limit = |what: String| LoraError::new(LoraErrorKind::Limit, what);
            if n_bytes > LINE_BYTES_MAX {
                return Err(limit(format!(
                    "line {number}: more than {LINE_BYTES_MAX} bytes; is it one record a line?"
                )));
            }
            if number > N_LINES_MAX {
                return Err(limit(format!("more than {N_LINES_MAX} lines; train on a part")));
            }
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let within = |error: LoraError| error.within(format_args!("line {number}"));
            let (record, quality) = TrainRecord::parse(&line).map_err(within)?;
            let text = format!("{record:?}");
            if quality.is_some_and(|quality| quality < filter.quality_min) {
                dropped.n_poor += 1;
            } else if record.n_chars() < filter.n_chars_min {
                dropped.n_short += 1;
            } else if !seen.insert(NamespaceBuilder::new("record").part("text", text.as_bytes()).identity()) {
                dropped.n_duplicate += 1;
            } else {
                hash = hash.part("record", text.as_bytes());
                records.push((number, record));
            }
        }
        match records.is_empty() {
            true => Err(invalid(format!("no record is left of the data ({})", dropped.line()))),
            false => Ok(Dataset { records, dropped, content: hash.identity() }),
        }
    }

    /// Turns all records into tokens and drops those that are too long, in the order of the file.
    ///
    /// # Errors
    /// A record cannot be encoded; the error names its line. Nothing is left.
    pub fn encode(&mut self, encoder: &dyn Encoder, filter: &Filter) -> Result<Vec<Example>, LoraError> {
        let (mut examples, mut kept) = (Vec::new(), Vec::new());
        for (line, record) in std::mem::take(&mut self.records) {
            let within = |error: LoraError| error.within(format_args!("line {line}"));
            let example = record.encode(encoder).map_err(within)?;
            if example.sequences.iter().any(|sequence| sequence.tokens.len() > filter.n_tokens_max) {
                self.dropped.n_long += 1;
                continue;
            }
            examples.push(example);
            kept.push((line, record));
        }
        self.records = kept;
        match examples.is_empty() {
            true => Err(invalid(format!("no record is left of the data ({})", self.dropped.line()))),
            false => Ok(examples),
        }
    }
}

impl Dropped {
    /// Returns it in words.
    pub fn line(&self) -> String {
        let Dropped { n_short, n_long, n_duplicate, n_poor } = self;
        format!("{n_short} too short, {n_long} too long, {n_duplicate} said before, {n_poor} of low quality")
    }
}

impl<T> Split<T> {
    /// Deals items out by a seed: the shares `val` and `test` of them, at least one each of ten or more where a share is not 0.
    ///
    /// # Errors
    /// The shares leave nothing to train on.
    pub fn new(items: Vec<T>, seed: u64, SplitShares { val, test }: SplitShares) -> Result<Split<T>, LoraError> {
        let n = items.len();
        let count = |share: f64| match share > 0.0 {
            true => ((share * n as f64).round() as usize).max(usize::from(n >= 10)),
            false => 0,
        };
        let (n_val, n_test) = (count(val), count(test));
        if n_val + n_test >= n {
            return Err(invalid(format!(
                "of {n} records {n_val} and {n_test} are held back; nothing is left to train on"
            )));
        }
        let mut place = vec![0; n];
        order(n, seed, 0).into_iter().enumerate().for_each(|(rank, item)| place[item] = rank);
        let mut split = Split { train: Vec::new(), val: Vec::new(), test: Vec::new() };
        for (item, rank) in items.into_iter().zip(place) {
            match rank {
                rank if rank < n_val => split.val.push(item),
                rank if rank < n_val + n_test => split.test.push(item),
                _ => split.train.push(item),
            }
        }
        Ok(split)
    }
}

/// Returns the numbers below `n` in an order that depends on seed and stream only.
pub(super) fn order(n: usize, seed: u64, stream: u64) -> Vec<usize> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(stream);
    let mut all: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        // The high half of a product is a fair draw to within n / 2^64.
        let j = ((u128::from(rng.next_u64()) * (i as u128 + 1)) >> 64) as usize;
        all.swap(i, j);
    }
    all
}

impl TrainRecord {
    /// Reads one line, and its `quality`.
    fn parse(line: &[u8]) -> Result<(TrainRecord, Option<f64>), LoraError> {
        let value: Value = serde_json::from_slice(line).map_err(|error| invalid(format!("no JSON: {error}")))?;
        let Value::Object(fields) = value else { return Err(invalid("no JSON object")) };
        let quality = match fields.get("quality") {
            None | Some(Value::Null) => None,
            Some(value) => Some(value.as_f64().ok_or_else(|| invalid("'quality' is no number"))?),
        };
        let has = |key: &str| fields.contains_key(key);
        let record = if has("messages") {
            TrainRecord::Chat(conversation(&fields["messages"], "messages")?)
        } else if has("text") {
            TrainRecord::Text(text(&fields, "text")?)
        } else if has("anchor") {
            let negative = has("negative").then(|| text(&fields, "negative")).transpose()?;
            TrainRecord::Similar(text(&fields, "anchor")?, text(&fields, "positive")?, negative)
        } else if has("prompt") {
            TrainRecord::prompted(&fields)?
        } else {
            let keys: Vec<&str> = fields.keys().map(String::as_str).take(8).collect();
            let line = "a record has 'messages', 'text', 'prompt' with 'completion', with 'chosen' and 'rejected' or with \
                        'completions', or 'anchor' with 'positive'";
            return Err(invalid(format!("fields '{}'; {line}", shown(&keys.join("', '")))));
        };
        if let TrainRecord::Chat(messages) = &record
            && !messages.iter().any(|message| message["role"] == "assistant")
        {
            return Err(invalid("no message of the assistant, so nothing to learn"));
        }
        Ok((record, quality))
    }

    fn prompted(fields: &Map<String, Value>) -> Result<TrainRecord, LoraError> {
        let prompt = match &fields["prompt"] {
            Value::String(text) => Prompt::Text(text.clone()),
            messages => Prompt::Messages(conversation(messages, "prompt")?),
        };
        if fields.contains_key("chosen") || fields.contains_key("rejected") {
            let all = vec![(answer(fields, "chosen")?, 1.0), (answer(fields, "rejected")?, 0.0)];
            return Ok(TrainRecord::Scored(prompt, all));
        }
        let Some(completions) = fields.get("completions") else {
            return Ok(TrainRecord::Completion(prompt, answer(fields, "completion")?));
        };
        let all = completions.as_array().ok_or_else(|| invalid("'completions' is no array"))?;
        if all.len() < 2 || all.len() > N_COMPLETIONS_MAX {
            return Err(invalid(format!("{} completions; 2 to {N_COMPLETIONS_MAX} can be compared", all.len())));
        }
        let one = |value: &Value| {
            let fields =
                value.as_object().ok_or_else(|| invalid("a completion is no object with 'text' and 'score'"))?;
            let score = fields.get("score").and_then(Value::as_f64).filter(|score| score.abs() <= 1e6);
            let score = score.ok_or_else(|| invalid("the 'score' of a completion is no number up to a million"))?;
            Ok((text(fields, "text")?, score as f32))
        };
        Ok(TrainRecord::Scored(prompt, all.iter().map(one).collect::<Result<_, LoraError>>()?))
    }

    /// Returns the number of characters of what is learned.
    fn n_chars(&self) -> usize {
        let of = |text: &str| text.trim().chars().count();
        match self {
            TrainRecord::Chat(messages) => {
                let own = messages.iter().filter(|message| message["role"] == "assistant");
                own.map(|message| message["content"].as_str().map_or(0, of)).sum()
            }
            TrainRecord::Text(text) | TrainRecord::Completion(_, text) => of(text),
            TrainRecord::Scored(_, all) => all.iter().map(|(text, _)| of(text)).min().unwrap_or(0),
            TrainRecord::Similar(anchor, positive, _) => of(anchor).min(of(positive)),
        }
    }

    /// Returns what is asked and what should be answered, where there is one answer to compare with.
    pub fn question(&self) -> Option<(Prompt, &str)> {
        match self {
            TrainRecord::Completion(prompt, answer) => Some((prompt.clone(), answer)),
            TrainRecord::Chat(messages) => {
                let (last, before) = messages.split_last()?;
                let answer = last["content"].as_str().filter(|_| last["role"] == "assistant" && !before.is_empty())?;
                Some((Prompt::Messages(before.to_vec()), answer))
            }
            _ => None,
        }
    }

    fn encode(&self, encoder: &dyn Encoder) -> Result<Example, LoraError> {
        let plain = |text: &str| {
            let tokens = encoder.text(text)?;
            Ok::<_, LoraError>(ScoredSequence { is_scored: vec![false; tokens.len()], tokens })
        };
        let (sequences, scores) = match self {
            TrainRecord::Chat(messages) => (vec![chat(encoder, messages)?], Vec::new()),
            TrainRecord::Text(text) => {
                let tokens: Vec<u32> = encoder.text(text)?.into_iter().chain(encoder.end()).collect();
                let is_scored = (0..tokens.len()).map(|i| i > 0).collect();
                (vec![ScoredSequence { tokens, is_scored }], Vec::new())
            }
            TrainRecord::Completion(prompt, answer) => (vec![completed(encoder, prompt, answer)?], Vec::new()),
            TrainRecord::Scored(prompt, all) => {
                let sequences =
                    all.iter().map(|(answer, _)| completed(encoder, prompt, answer)).collect::<Result<_, _>>()?;
                (sequences, all.iter().map(|(_, score)| *score).collect())
            }
            TrainRecord::Similar(anchor, positive, negative) => {
                let texts = [Some(anchor), Some(positive), negative.as_ref()];
                (texts.into_iter().flatten().map(|text| plain(text)).collect::<Result<_, _>>()?, Vec::new())
            }
        };
        let is_learned =
            |sequence: &ScoredSequence| sequence.n_scored() > 0 || matches!(self, TrainRecord::Similar(..));
        match sequences.iter().all(|sequence| is_learned(sequence) && !sequence.tokens.is_empty()) {
            true => Ok(Example { sequences, scores }),
            false => Err(invalid("it has no token that could be learned")),
        }
    }
}

/// Returns a field that must be a text.
fn text(fields: &Map<String, Value>, key: &str) -> Result<String, LoraError> {
    match fields.get(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(invalid(format!("'{key}' is no text"))),
        None => Err(invalid(format!("'{key}' is missing"))),
    }
}

/// Returns a field that is an answer: a text, or a list of one message of the assistant.
fn answer(fields: &Map<String, Value>, key: &str) -> Result<String, LoraError> {
    let content =
        fields.get(key).and_then(Value::as_array).filter(|all| all.len() == 1 && all[0]["role"] == "assistant");
    match content.and_then(|all| all[0]["content"].as_str()) {
        Some(content) => Ok(content.to_owned()),
        None => text(fields, key),
    }
}

/// Returns the messages of a conversation, checked.
fn conversation(value: &Value, key: &str) -> Result<Vec<Value>, LoraError> {
    let messages = value.as_array().filter(|all| !all.is_empty());
    let messages = messages.ok_or_else(|| invalid(format!("'{key}' is no list of messages")))?;
    for (i, message) in messages.iter().enumerate() {
        if !(message["role"].is_string() && message["content"].is_string()) {
            return Err(invalid(format!("message {} of '{key}' has no 'role' and 'content' that are texts", i + 1)));
        }
    }
    Ok(messages.clone())
}

/// Encodes a prompt and what follows it; the latter is learned.
fn completed(encoder: &dyn Encoder, prompt: &Prompt, answer: &str) -> Result<ScoredSequence, LoraError> {
    match prompt {
        Prompt::Messages(messages) => {
            let mut messages = messages.clone();
            messages.push(json!({ "role": "assistant", "content": answer }));
            let before = encoder.chat(&messages[..messages.len() - 1], true)?;
            let tokens = encoder.chat(&messages, false)?;
            let mut is_scored = vec![false; tokens.len()];
            mark(encoder, &tokens, n_common(&before, &tokens)..tokens.len(), &mut is_scored);
            Ok(ScoredSequence { tokens, is_scored })
        }
        Prompt::Text(prompt) => {
            let before = encoder.text(prompt)?;
            let tokens: Vec<u32> =
                encoder.text(&format!("{prompt}{answer}"))?.into_iter().chain(encoder.end()).collect();
            let from = n_common(&before, &tokens).max(1);
            let is_scored = (0..tokens.len()).map(|i| i >= from).collect();
            Ok(ScoredSequence { tokens, is_scored })
        }
    }
}

/// Encodes a conversation; every answer of the assistant is learned.
fn chat(encoder: &dyn Encoder, messages: &[Value]) -> Result<ScoredSequence, LoraError> {
    // What comes behind the last answer is not seen by any.
    let n = messages.iter().rposition(|message| message["role"] == "assistant").map_or(0, |last| last + 1);
    let messages = &messages[..n];
    let tokens = encoder.chat(messages, false)?;
    let mut is_scored = vec![false; tokens.len()];
    for i in (0..n).filter(|&i| messages[i]["role"] == "assistant") {
        let from = n_common(&encoder.chat(&messages[..i], true)?, &tokens);
        let to = if i + 1 == n { tokens.len() } else { n_common(&encoder.chat(&messages[..=i], false)?, &tokens) };
        mark(encoder, &tokens, from..to, &mut is_scored);
    }
    Ok(ScoredSequence { tokens, is_scored })
}

/// Marks an answer up to the token that ends it; what the template writes behind that is never generated.
fn mark(encoder: &dyn Encoder, tokens: &[u32], answer: std::ops::Range<usize>, is_scored: &mut [bool]) {
    let end = answer.clone().rev().find(|&i| encoder.is_end(tokens[i])).map_or(answer.end, |i| i + 1);
    is_scored[answer.start.max(1)..end.max(answer.start.max(1))].fill(true);
}

/// Returns with how many equal tokens both begin.
fn n_common(x: &[u32], y: &[u32]) -> usize {
    x.iter().zip(y).take_while(|(x, y)| x == y).count()
}
