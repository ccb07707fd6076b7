//! The compiler of grammars for one vocabulary.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use llguidance::api::ParserLimits;
use llguidance::{Matcher, ParserFactory};
use ruvllm_text::GrammarSource;
use ruvllm_text::tokenizer::Tokenizer;
use toktrie::{InferenceCapabilities, TokEnv};
use web_time::{Duration, Instant};

use crate::ahead::MaskThread;
use crate::env::Environment;
use crate::error::{NO_TEXT, is_dead_end, refused};
use crate::judge::Judge;
use crate::pool::Pool;
use crate::{Grammar, GrammarError, source};

/// The stack on which a grammar is compiled: its compiler descends into it. What is not used of it takes no memory.
pub(crate) const STACK_BYTES: usize = 256 << 20;
/// How long a token may take: others wait meanwhile.
const STEP_MAX: Duration = Duration::from_secs(1);

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
    pub fn new(tokenizer: &Arc<Tokenizer>, n_vocab: usize) -> Result<GrammarCompiler, GrammarError> {
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
    /// [`Invalid`](crate::GrammarErrorKind::Invalid): it is malformed, too large, uses what is not supported (named), allows
    /// nothing, or takes too long; [`QueueFull`](crate::GrammarErrorKind::QueueFull) and
    /// [`Stopped`](crate::GrammarErrorKind::Stopped): it cannot be compiled now.
    pub fn compile(&self, source: &GrammarSource) -> Result<Grammar, GrammarError> {
        let factory = Arc::clone(&self.factory);
        let source = Arc::new(source.clone());
        source::check_size(&source)?;
        let read_source = Arc::clone(&source);
        let compile = move || -> Result<(Matcher, Option<Arc<Judge>>), GrammarError> {
            let (grammar, judge) = source::read(&read_source)?;
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

/// What a grammar may cost at most: some 30 MB of lexer states, and an allowance of work to compile it and for each mask. Of
/// 452 schemas the dearest took 0.7 s to compile and 27 ms for a mask.
fn limits() -> ParserLimits {
    ParserLimits { max_lexer_states: 20_000, verbose_errors: false, ..ParserLimits::default() }
}

/// Takes a token on trial, so that a grammar whose steps take long shows here, where nobody else waits for it.
///
/// # Errors
/// [`crate::GrammarErrorKind::Invalid`]: it does.
fn check_steps(matcher: &Matcher, first: Option<usize>) -> Result<(), GrammarError> {
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
