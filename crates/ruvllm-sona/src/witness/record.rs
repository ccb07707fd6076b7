//! What a witness record says.

use crate::codec::{Reader, Writer};
use crate::error::SonaError;
use crate::quality::Scores;
use crate::trajectory::Latency;

/// A text as it is put on record: always its digest, the tokens only where that is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// BLAKE3 of the tokens, see [`Content::digest_of`].
    pub digest: [u8; 32],
    /// Number of tokens.
    pub n_tokens: u32,
    /// The tokens; needed to replay.
    pub tokens: Option<Vec<u32>>,
}

impl Content {
    /// The record of `tokens`, which are kept only if `keeps` says so.
    pub fn new(tokens: &[u32], keeps: bool) -> Content {
        let digest = Content::digest_of(tokens);
        Content { digest, n_tokens: tokens.len() as u32, tokens: keeps.then(|| tokens.to_vec()) }
    }

    /// BLAKE3 of tokens as little-endian numbers.
    pub fn digest_of(tokens: &[u32]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
        *hasher.finalize().as_bytes()
    }

    /// Tokens that are kept.
    pub(super) fn n_kept(&self) -> usize {
        self.tokens.as_ref().map_or(0, Vec::len)
    }

    fn write(&self, to: &mut Writer) {
        to.raw(&self.digest).u32(self.n_tokens).u8(u8::from(self.tokens.is_some()));
        if let Some(tokens) = &self.tokens {
            to.u32s(tokens);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Content, SonaError> {
        let (digest, n_tokens) = (from.array()?, from.u32()?);
        let tokens = if from.u8()? == 0 { None } else { Some(from.u32s()?) };
        Ok(Content { digest, n_tokens, tokens })
    }
}

/// One served request: what ran, on what, and what came of it. With the tokens it can be run again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Served {
    /// The request's number.
    pub request: u64,
    /// The model's hash.
    pub model: [u8; 32],
    /// The generation of what was learnt; 0 is the model alone.
    pub adapter_generation: u64,
    /// The chat template's hash.
    pub template: [u8; 32],
    /// Settings of the request: samplers and their settings, limits, the form of the answer. A text of whoever
    /// records, who reads it again to replay.
    pub settings: String,
    /// Seed of its random numbers.
    pub seed: u64,
    /// The prompt.
    pub prompt: Content,
    /// The answer.
    pub completion: Content,
    /// Why the answer ended; empty if it did not come to its end.
    pub finish: String,
    /// Tokens of the prompt that came from the cache.
    pub n_cached_tokens: u32,
    /// Number of cached tokens that came from disk.
    pub n_disk_tokens: u32,
    /// Routing: the chosen model with the reason; empty without a router.
    pub routing: String,
    /// Choices of the autotuner with their reasons; empty if nobody chose.
    pub policy: String,
    /// Time that it took.
    pub latency: Latency,
    /// Its quality, 0 to 1, where that is known at its end.
    pub quality: Option<f32>,
    /// Scores that the quality was made of.
    pub scores: Scores,
    /// Why it failed.
    pub error: Option<String>,
}

/// Event on record.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A request was served, or failed.
    Served(Box<Served>),
    /// Somebody said how good a request was.
    Feedback {
        /// The request's number.
        request: u64,
        /// 0 to 1.
        quality: f32,
    },
    /// Something was learnt, published, rolled back or undone.
    Learning {
        /// What, in one line.
        what: String,
    },
    /// A kernel pack was taken, refused or removed.
    Pack {
        /// What, in one line.
        what: String,
    },
    /// Records that found the queue full: so many never came to be written.
    Lost {
        /// How many.
        n: u64,
    },
    /// Contents that were erased, by retention or for their owner; the chain over them stands.
    Erased {
        /// The numbers of their records, ascending.
        seqs: Vec<u64>,
    },
}

/// First byte of a record. Those of the first format have no policy and no scores.
const FORMAT: u8 = 2;

impl Event {
    /// Returns the event as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut to = Writer::new();
        to.u8(FORMAT);
        match self {
            Event::Served(served) => served.write(to.u8(0)),
            Event::Feedback { request, quality } => {
                to.u8(1).u64(*request).f32(*quality);
            }
            Event::Learning { what } => {
                to.u8(2).text(what);
            }
            Event::Pack { what } => {
                to.u8(5).text(what);
            }
            Event::Lost { n } => {
                to.u8(3).u64(*n);
            }
            Event::Erased { seqs } => {
                to.u8(4).count(seqs.len());
                for seq in seqs {
                    to.u64(*seq);
                }
            }
        }
        to.take()
    }

    /// Reads what [`Event::to_bytes`] made.
    ///
    /// # Errors
    /// If the bytes are something else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Event, SonaError> {
        let mut from = Reader::new(bytes, "witness record");
        let format = from.format(1..=FORMAT)?;
        let event = match from.u8()? {
            0 => Event::Served(Box::new(Served::read(&mut from, format)?)),
            1 => Event::Feedback { request: from.u64()?, quality: from.f32()? },
            2 => Event::Learning { what: from.text()? },
            3 => Event::Lost { n: from.u64()? },
            4 => {
                let n = from.count(8)?;
                Event::Erased { seqs: (0..n).map(|_| from.u64()).collect::<Result<_, _>>()? }
            }
            5 => Event::Pack { what: from.text()? },
            kind => return Err(from.invalid(format_args!("there is no kind {kind}"))),
        };
        from.end()?;
        Ok(event)
    }
}

impl Served {
    fn write(&self, to: &mut Writer) {
        to.u64(self.request).raw(&self.model).u64(self.adapter_generation).raw(&self.template);
        to.text(&self.settings).u64(self.seed);
        self.prompt.write(to);
        self.completion.write(to);
        to.text(&self.finish).u32(self.n_cached_tokens).u32(self.n_disk_tokens).text(&self.routing);
        to.u64(self.latency.queue_us).u64(self.latency.prefill_us).u64(self.latency.decode_us);
        to.u8(u8::from(self.quality.is_some())).f32(self.quality.unwrap_or(0.0));
        to.u8(u8::from(self.error.is_some())).text(self.error.as_deref().unwrap_or(""));
        to.text(&self.policy);
        for (_, score) in self.scores.named() {
            to.u8(u8::from(score.is_some())).f32(score.unwrap_or(0.0));
        }
    }

    fn read(from: &mut Reader<'_>, format: u8) -> Result<Served, SonaError> {
        let mut served = Served {
            request: from.u64()?,
            model: from.array()?,
            adapter_generation: from.u64()?,
            template: from.array()?,
            settings: from.text()?,
            seed: from.u64()?,
            prompt: Content::read(from)?,
            completion: Content::read(from)?,
            finish: from.text()?,
            n_cached_tokens: from.u32()?,
            n_disk_tokens: from.u32()?,
            routing: from.text()?,
            latency: Latency { queue_us: from.u64()?, prefill_us: from.u64()?, decode_us: from.u64()? },
            quality: {
                let is_known = from.u8()? != 0;
                let quality = from.f32()?;
                is_known.then_some(quality)
            },
            error: {
                let has_failed = from.u8()? != 0;
                let why = from.text()?;
                has_failed.then_some(why)
            },
            ..Served::default()
        };
        if format >= 2 {
            served.policy = from.text()?;
            let Scores { schema, coherence, diversity, consistency, uniqueness } = &mut served.scores;
            for score in [schema, coherence, diversity, consistency, uniqueness] {
                let is_known = from.u8()? != 0;
                let value = from.f32()?;
                *score = is_known.then_some(value);
            }
        }
        Ok(served)
    }
}
