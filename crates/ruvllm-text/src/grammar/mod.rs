//! Structured output: answers that a grammar allows, and nothing else.
//!
//! A [`GrammarCompiler`] turns a [`GrammarSource`] into a [`Grammar`], on any thread; a request carries it. While the
//! answer is written, `Constraint` rules out the tokens after which no valid answer is possible, and the answer can end
//! only where it is valid. Tokens that are the only possible ones are taken without asking the model.
//!
//! The work behind it is `llguidance`'s: an Earley parser over a lexer of derivatives, walked along the trie of all
//! tokens. What a hostile grammar may cost is limited ([`limits`]); going over a limit is an error, never a way out.

mod ahead;
mod draft;
mod env;
#[cfg(test)]
mod forms;
mod gbnf;
mod judge;
mod nested;
mod pool;
mod schema;
mod size;
#[cfg(test)]
mod tests;
mod watch;

use std::fmt;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use llguidance::api::{ParserLimits, StopReason, TopLevelGrammar};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use toktrie::{InferenceCapabilities, SimpleVob, TokEnv};

use crate::grammar_source::GrammarSource;
use crate::tokenizer::Tokenizer;
use crate::{TextError, TextErrorKind};
use ahead::{Computed, MaskThread};
use env::Environment;
use judge::Judge;
use pool::Pool;
use watch::Watch;

/// The longest schema, or grammar of rules, in bytes of its text.
const RULES_BYTES_MAX: usize = 512 << 10;
/// The longest regular expression or list of choices: all of it is text that is asked for.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// Memory that a compiled grammar takes at most, beside what each byte of its source may take (measured: docs, "Structured
/// output").
const GRAMMAR_BYTES: usize = 1 << 20;
const BYTES_PER_BYTE: usize = 512;
/// The deepest nesting of brackets in it.
const DEPTH_MAX: usize = 128;
/// The stack on which a grammar is compiled: its compiler descends into it. What is not used of it takes no memory.
const STACK_BYTES: usize = 256 << 20;
/// How long a token may take: others wait meanwhile.
const STEP_MAX: Duration = Duration::from_secs(1);
/// What is wrong with rules that only lead back to each other, a class without characters and the like.
const NO_TEXT: &str = "it allows no text at all; give its rules an end: what only leads back to itself has none";

/// Compiles grammars for one model. Made once: it looks at every token of the vocabulary.
pub struct GrammarCompiler {
    factory: Arc<ParserFactory>,
    /// Started with the first grammar.
    pool: OnceLock<Pool>,
    tokenizer: Arc<Tokenizer>,
    masks: Option<Arc<MaskThread>>,
}

impl GrammarCompiler {
    /// Makes a compiler for a tokenizer and logits of `n_vocab` tokens.
    ///
    /// # Errors
    /// The vocabulary has no token that ends an answer.
    pub fn new(tokenizer: &Arc<Tokenizer>, n_vocab: usize) -> Result<GrammarCompiler, TextError> {
        let env: TokEnv = Arc::new(Environment::new(Arc::clone(tokenizer), n_vocab)?);
        let caps = InferenceCapabilities { ff_tokens: true, ..InferenceCapabilities::default() };
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, caps, &slices).map_err(|error| refused(&error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(GrammarCompiler {
            factory: Arc::new(factory),
            pool: OnceLock::new(),
            tokenizer: Arc::clone(tokenizer),
            masks: None,
        })
    }

    /// Has masks computed while the model runs on `n_threads`, if the machine has another core.
    pub fn with_masks_ahead(mut self, n_threads: usize) -> GrammarCompiler {
        self.masks = MaskThread::start(n_threads).map(Arc::new);
        self
    }

    /// Compiles a grammar.
    ///
    /// # Errors
    /// [`TextErrorKind::Grammar`]: it is malformed, too large, uses what is not supported (named), allows nothing, or takes too
    /// long; [`TextErrorKind::QueueFull`] and [`TextErrorKind::Stopped`]: it cannot be compiled now.
    pub fn compile(&self, source: &GrammarSource) -> Result<Grammar, TextError> {
        let factory = Arc::clone(&self.factory);
        let source = Arc::new(source.clone());
        check_size(&source)?;
        let read_source = Arc::clone(&source);
        let compile = move || -> Result<(Matcher, Option<Arc<Judge>>), TextError> {
            let (grammar, judge) = read(&read_source)?;
            let parser = factory.create_parser(grammar).map_err(|error| refused(&format!("{error:#}")))?;
            let mut matcher = Matcher::new(Ok(parser));
            // What allows nothing shows with the first mask.
            let first = if matcher.is_stopped() { None } else { matcher.compute_mask().ok() };
            match first {
                Some(mask) => {
                    check_steps(&matcher, mask.first_bit_set())?;
                    Ok((matcher, judge.map(Arc::new)))
                }
                None => {
                    let error = matcher.get_error().filter(|error| !is_dead_end(error));
                    Err(refused(error.as_deref().unwrap_or(NO_TEXT)))
                }
            }
        };
        let pool = match self.pool.get() {
            Some(pool) => pool,
            // Another caller may be as fast; its threads end with what is not kept.
            None => {
                let pool = Pool::start(STACK_BYTES)?;
                self.pool.get_or_init(|| pool)
            }
        };
        let (matcher, judge) = pool.run(compile)?;
        let (matcher, tokenizer) = (Arc::new(Mutex::new(matcher)), Arc::clone(&self.tokenizer));
        Ok(Grammar { source, matcher, judge, tokenizer, masks: self.masks.clone(), allows_stops: false })
    }
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarCompiler").finish_non_exhaustive()
    }
}

/// A compiled grammar, for the model it was compiled for. Clones share it; each request goes through it by itself.
#[derive(Clone)]
pub struct Grammar {
    source: Arc<GrammarSource>,
    /// Before the first token.
    matcher: Arc<Mutex<Matcher>>,
    /// Looks at what it cannot say.
    judge: Option<Arc<Judge>>,
    tokenizer: Arc<Tokenizer>,
    /// Stop strings may end the answer as well.
    allows_stops: bool,
    masks: Option<Arc<MaskThread>>,
}

impl Grammar {
    /// Returns what it was compiled of.
    pub fn source(&self) -> &GrammarSource {
        &self.source
    }

    /// Returns the bytes that it takes at most.
    pub fn n_bytes(&self) -> usize {
        GRAMMAR_BYTES + BYTES_PER_BYTE * self.source.n_bytes()
    }

    /// Begins an answer.
    pub fn start(&self) -> Constraint {
        Constraint::new(self)
    }

    /// Returns how many leading tokens of an answer it allows, and whether an answer may be all of them. What ends an answer
    /// without being part of it counts as allowed where it may end.
    pub fn check(&self, ids: &[u32]) -> (usize, bool) {
        let mut constraint = self.start();
        for (i, &id) in ids.iter().enumerate() {
            let is_end = i + 1 == ids.len() && self.tokenizer.is_end_of_generation(id);
            if is_end && constraint.is_valid() {
                return (ids.len(), true);
            }
            if constraint.accept(id).is_err() {
                return (i, false);
            }
        }
        (ids.len(), constraint.is_valid())
    }

    /// Returns the grammar for answers that stop strings may end: what they cut off is missing then.
    pub fn with_stops(self) -> Grammar {
        Grammar { allows_stops: true, ..self }
    }

    /// Returns whether stop strings may end the answer.
    pub fn allows_stops(&self) -> bool {
        self.allows_stops
    }

    /// Returns whether it was compiled for this model.
    pub fn is_for(&self, tokenizer: &Arc<Tokenizer>) -> bool {
        Arc::ptr_eq(&self.tokenizer, tokenizer)
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

/// What a grammar may cost at most: some 30 MB of lexer states, and an allowance of work to compile it and for each mask. Of
/// 452 schemas the dearest took 0.7 s to compile and 27 ms for a mask.
fn limits() -> ParserLimits {
    ParserLimits { max_lexer_states: 20_000, verbose_errors: false, ..ParserLimits::default() }
}

/// Checks the size of a source.
fn check_size(source: &GrammarSource) -> Result<(), TextError> {
    let n_bytes = source.n_bytes();
    let max = match source {
        GrammarSource::Regex(_) | GrammarSource::Choice(_) => TEXT_BYTES_MAX,
        _ => RULES_BYTES_MAX,
    };
    if n_bytes > max {
        return Err(refused(&format!("it has {n_bytes} bytes, and {max} are the most")));
    }
    match source {
        GrammarSource::Regex(text) | GrammarSource::Lark(text) | GrammarSource::Gbnf(text)
            if depth(text) > DEPTH_MAX =>
        {
            Err(refused(&format!("its brackets nest deeper than {DEPTH_MAX}")))
        }
        GrammarSource::JsonSchema(schema) => size::check_schema(schema),
        _ => Ok(()),
    }
}

/// Writes a source as `llguidance` reads it, and returns what looks at the rest. On a thread with a large stack.
fn read(source: &GrammarSource) -> Result<(TopLevelGrammar, Option<Judge>), TextError> {
    let grammar = match source {
        GrammarSource::JsonObject => return json_schema(&json!({ "type": "object" })),
        GrammarSource::JsonSchema(schema) => return json_schema(schema),
        GrammarSource::Regex(text) => {
            size::check_regex(text)?;
            TopLevelGrammar::from_regex(text)
        }
        GrammarSource::Choice(texts) => choice(texts)?,
        GrammarSource::Lark(text) => {
            size::check_lark(text)?;
            TopLevelGrammar::from_lark(nested::with_own_schemas(text)?)
        }
        GrammarSource::Gbnf(text) => {
            let lark = gbnf::to_lark(text)?;
            size::check_lark(&lark)?;
            TopLevelGrammar::from_lark(lark)
        }
    };
    Ok((grammar, None))
}

/// Returns how deep brackets nest, those in texts included.
fn depth(text: &str) -> usize {
    let (mut now, mut most) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => now += 1,
            b')' | b']' | b'}' => now = now.saturating_sub(1),
            _ => {}
        }
        most = most.max(now);
    }
    most
}

fn json_schema(schema: &Value) -> Result<(TopLevelGrammar, Option<Judge>), TextError> {
    let compiled = schema::compile(schema)?.ok_or_else(|| refused(NO_TEXT))?;
    let judge = Judge::new(schema, &compiled.looked_at)?;
    Ok((TopLevelGrammar::from_lark(compiled.lark), judge))
}

fn choice(texts: &[String]) -> Result<TopLevelGrammar, TextError> {
    if texts.is_empty() || texts.iter().any(String::is_empty) {
        return Err(refused("a choice needs texts, none of them empty"));
    }
    let texts: Vec<String> = texts.iter().map(|text| Value::from(text.as_str()).to_string()).collect();
    Ok(TopLevelGrammar::from_lark(format!("start: CHOICE\nCHOICE: {}\n", texts.join(" | "))))
}

/// Takes a token on trial, so that a grammar whose steps take long shows here, where nobody else waits for it.
///
/// # Errors
/// [`TextErrorKind::Grammar`]: it does.
fn check_steps(matcher: &Matcher, first: Option<usize>) -> Result<(), TextError> {
    let Some(first) = first else { return Ok(()) };
    let (mut trial, start) = (matcher.deep_clone(), Instant::now());
    // What it says itself is said again when an answer comes to it.
    if trial.consume_token(first as u32).is_ok() && !trial.is_stopped() {
        let _ = trial.compute_mask();
    }
    match start.elapsed() > STEP_MAX {
        true => Err(refused("a token of it takes more than a second; make its rules less ambiguous")),
        false => Ok(()),
    }
}

/// Returns whether `llguidance` says that no token may come: the name of its reason is all that it writes.
fn is_dead_end(error: &str) -> bool {
    error.starts_with(&format!("{:?}", StopReason::NoExtensionBias))
}

/// Makes an error of what `llguidance` says, in one line that names unsupported keywords.
fn refused(reason: &str) -> TextError {
    let lines = || reason.lines().map(str::trim);
    let line = lines().find(|line| !line.is_empty()).unwrap_or("it cannot be compiled");
    // A regular expression's fault comes behind a drawing of where it is.
    let fault = lines().find_map(|line| line.strip_prefix("error: ")).filter(|_| line.ends_with(':'));
    let whole = fault.map_or_else(|| line.to_owned(), |fault| format!("{line} {fault}"));
    let line = whole.as_str();
    let line = match line.split_once("Unimplemented keys: ") {
        Some((_, keys)) => {
            let keys: Vec<String> = keys.split('"').skip(1).step_by(2).map(|key| format!("'{key}'")).collect();
            format!("the schema uses {}, which is not supported", keys.join(", "))
        }
        None if is_dead_end(line) => {
            "nothing can follow what is written; give the rules that are used an end".to_owned()
        }
        None if line.contains("oneOf constraints") => {
            "the schema uses 'oneOf' with branches that may overlap, which is not supported".to_owned()
        }
        None => match line.split_once("Only absolute $ref's").and_then(|(_, rest)| rest.split_once("; ref ")) {
            Some((_, name)) => format!("the schema uses '$ref' to {name}, and only '#/…' is supported"),
            None => line.trim_end_matches('.').chars().take(300).collect(),
        },
    };
    let line = match line.starts_with("the schema uses") {
        true => line,
        false => format!("the grammar cannot be used: {line}"),
    };
    TextError::new(TextErrorKind::Grammar, line)
}

/// A grammar on its way through one answer. Requests have one inside; it is for callers who drive sequences themselves.
pub struct Constraint {
    /// `None` while its mask is computed elsewhere.
    matcher: Option<Box<Matcher>>,
    /// From where it comes back then.
    away: Option<Receiver<Computed>>,
    masks: Option<Arc<MaskThread>>,
    mask: Option<SimpleVob>,
    /// The tokens that must come next, the last first.
    forced: Vec<u32>,
    /// What looks at values as they close, if a grammar cannot say all.
    watch: Option<Box<Watch>>,
    tokenizer: Arc<Tokenizer>,
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").field("forced", &self.forced).finish_non_exhaustive()
    }
}

impl Constraint {
    fn new(grammar: &Grammar) -> Constraint {
        let matcher = grammar.matcher.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        let masks = grammar.masks.clone();
        let mut constraint = Constraint {
            matcher: Some(Box::new(matcher)),
            away: None,
            masks,
            mask: None,
            forced: Vec::new(),
            watch: grammar.judge.clone().map(|judge| Box::new(Watch::new(judge))),
            tokenizer: Arc::clone(&grammar.tokenizer),
        };
        constraint.look_ahead();
        constraint
    }

    /// Returns the matcher; waits for it if its mask is computed elsewhere.
    fn matcher(&mut self) -> Result<&mut Matcher, TextError> {
        if let Some(away) = self.away.take() {
            let (matcher, mask) = away.recv().map_err(|_| refused("the thread that computes masks failed"))?;
            self.matcher = Some(matcher);
            self.mask = Some(mask.map_err(|error| refused(&error))?);
        }
        self.matcher.as_deref_mut().ok_or_else(|| refused("the thread that computes masks failed"))
    }

    /// Begins to find out which tokens may come next, on another core if there is one: [`Constraint::compute_mask`] has it
    /// then. To be called before the model runs.
    pub fn begin_mask(&mut self) {
        let (true, true, Some(masks)) = (self.forced.is_empty(), self.mask.is_none(), &self.masks) else { return };
        match self.matcher.take().map(|matcher| masks.begin(matcher)) {
            Some(Ok(away)) => self.away = Some(away),
            Some(Err(matcher)) => self.matcher = Some(matcher),
            None => {}
        }
    }

    /// Returns the token that must come next, if there is only one.
    pub fn forced(&self) -> Option<u32> {
        self.forced.last().copied()
    }

    /// Returns whether values are looked at as they close: tokens that were taken may be taken back then, and none of the
    /// answer is certain before its end.
    pub fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// Finds out which tokens may come next.
    ///
    /// # Errors
    /// [`TextErrorKind::Grammar`]: it costs more than it may.
    pub fn compute_mask(&mut self) -> Result<(), TextError> {
        self.matcher()?;
        if self.mask.is_none() {
            let mask = self.matcher()?.compute_mask().map_err(|error| refused(&error.to_string()))?;
            self.mask = Some(mask);
        }
        self.rule_out();
        Ok(())
    }

    /// Takes what the watch rules out of the mask.
    fn rule_out(&mut self) {
        let (Some(watch), Some(mask)) = (&self.watch, &mut self.mask) else { return };
        watch.ruled_out().iter().for_each(|&id| mask.disallow_token(id));
        let n_vocab = mask.len();
        let ends = || self.tokenizer.end_of_generation().filter(|&id| (id as usize) < n_vocab);
        if ends().any(|id| mask.is_allowed(id)) && !watch.is_right() {
            ends().for_each(|id| mask.disallow_token(id));
        }
    }

    /// Sets the logits of those that may not come to -∞; `logits`: `[n_vocab]`.
    pub fn apply_mask(&self, logits: &mut [f32]) {
        let Some(mask) = &self.mask else { return };
        for (logits, &bits) in logits.chunks_mut(32).zip(mask.as_slice()) {
            match bits {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                bits => {
                    let ruled_out = logits.iter_mut().enumerate().filter(|(i, _)| bits >> i & 1 == 0);
                    ruled_out.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
                }
            }
        }
    }

    /// Takes note of the next token.
    ///
    /// # Errors
    /// [`TextErrorKind::Grammar`]: the token is none that may come, or looking at it costs more than it may.
    pub fn accept(&mut self, id: u32) -> Result<(), TextError> {
        match self.try_accept(id)? {
            true => Ok(()),
            false => Err(refused("a value that closes with the token does not fit the schema")),
        }
    }

    /// Takes note of the next token, or rules it out, if a value that is not valid closes with it; another is to be chosen
    /// then, by [`Constraint::compute_mask`].
    ///
    /// # Errors
    /// As [`Constraint::accept`].
    pub fn try_accept(&mut self, id: u32) -> Result<bool, TextError> {
        self.matcher()?;
        if let Some(watch) = &mut self.watch {
            let is_right = match self.tokenizer.is_end_of_generation(id) {
                true => watch.is_right(),
                false => watch.take(id, &self.tokenizer.token_bytes(id).unwrap_or_default()),
            };
            if !is_right {
                if self.tokenizer.is_end_of_generation(id) {
                    watch.rule_out(id);
                }
                self.forced.clear();
                return Ok(false);
            }
        }
        let consumed = self.matcher()?.consume_token(id);
        self.mask = None;
        consumed.map_err(|error| refused(&error.to_string()))?;
        // A number at the top may end without a mark.
        if self.is_complete()
            && !self.tokenizer.is_end_of_generation(id)
            && self.watch.as_mut().is_some_and(|watch| watch.give_up_last())
        {
            self.forced.clear();
            self.matcher()?.rollback(1).map_err(|error| refused(&error.to_string()))?;
            return Ok(false);
        }
        if self.forced.last() == Some(&id) {
            self.forced.pop();
        } else {
            self.forced.clear();
        }
        if self.forced.is_empty() {
            self.look_ahead();
        }
        Ok(true)
    }

    /// Goes back, if no token may come or what is written closes in no way that was tried. Returns how many tokens are taken
    /// back; the mask is that behind the others then. To be asked after [`Constraint::compute_mask`].
    ///
    /// # Errors
    /// [`TextErrorKind::Grammar`]: it was gone back as often as may be.
    pub fn rewind(&mut self) -> Result<usize, TextError> {
        let Some(watch) = &mut self.watch else { return Ok(0) };
        let is_stuck = self.forced.is_empty() && self.mask.as_ref().is_some_and(SimpleVob::is_zero);
        if !watch.must_rewind(is_stuck)? {
            return Ok(0);
        }
        let n_back = watch.rewind()?;
        self.mask = None;
        self.forced.clear();
        let rolled_back = self.matcher()?.rollback(n_back);
        rolled_back.map_err(|error| refused(&error.to_string()))?;
        Ok(n_back)
    }

    /// Returns how many of `ids` may follow, one after the other.
    pub fn n_allowed(&mut self, ids: &[u32]) -> usize {
        // What is looked at is not guessed.
        if self.is_watched() {
            return 0;
        }
        self.matcher().ok().and_then(|matcher| matcher.validate_tokens(ids).ok()).unwrap_or(0)
    }

    /// Returns whether the answer may end here.
    pub fn is_valid(&mut self) -> bool {
        let is_accepting = self.matcher().is_ok_and(|matcher| matcher.is_accepting().unwrap_or(false));
        is_accepting && self.watch.as_ref().is_none_or(|watch| watch.is_right())
    }

    /// Returns whether the answer is complete: valid, and nothing can follow.
    pub fn is_complete(&mut self) -> bool {
        self.matcher().is_ok_and(|matcher| matcher.is_stopped() && !matcher.is_error())
    }

    fn look_ahead(&mut self) {
        if let Some(matcher) = self.matcher.as_deref_mut().filter(|matcher| !matcher.is_stopped()) {
            self.forced = matcher.compute_ff_tokens();
            self.forced.reverse();
        }
    }
}
