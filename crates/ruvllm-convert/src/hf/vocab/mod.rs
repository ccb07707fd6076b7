//! A folder's tokenizer as keys of a file.

mod pre;
mod pre_names;
mod sentencepiece;
mod special;
mod tokenizer_json;

use std::collections::HashMap;

use ruvllm_gguf::Metadata;
use serde_json::{Value as Json, json};

use self::sentencepiece::{BYTE, CONTROL, NORMAL, UNUSED, USER_DEFINED};
use self::special::Special;
use self::tokenizer_json::{AddedToken, N_TOKENS_MAX, TokenizerJson, bad_id, usable_id};
use super::arch::VocabKind;
use super::config::Config;
use super::folder::Folder;
use crate::error::{ConvertError, shown};

/// The file of a tokenizer's settings.
const SETTINGS: &str = "tokenizer_config.json";
/// Score of tokens that are cut out of texts.
const SCORE_OF_ADDED: f32 = -1000.0;
/// Score of tokens of a vocabulary that no merge makes: single characters and bytes.
const SCORE_OF_SINGLE: f32 = -1e9;
/// Score of tokens that are not there.
const SCORE_OF_PADDING: f32 = -10000.0;

/// Tokens by id.
struct Tokens {
    texts: Vec<String>,
    types: Vec<i32>,
    /// Only SentencePiece has them.
    scores: Vec<f32>,
}

/// A folder's tokenizer, while it is written.
struct Writer<'a> {
    folder: &'a Folder,
    config: &'a Config,
    metadata: &'a mut Metadata,
    /// Tokens as the configuration counts them.
    n_vocab: Option<usize>,
    settings: Json,
}

/// Writes the keys of a folder's tokenizer, and returns the number of its tokens. `pre` names how texts are cut, for tokenizers of
/// which that is not known.
///
/// # Errors
/// It has none, or of a kind that is not converted.
pub(super) fn write(
    folder: &Folder,
    config: &Config,
    kind: VocabKind,
    pre: Option<&str>,
    metadata: &mut Metadata,
) -> Result<usize, ConvertError> {
    let settings = folder.json(SETTINGS)?.unwrap_or_default();
    let mut n_vocab = config.count_if_any(&["vocab_size"])?;
    if let VocabKind::Padded(to) = kind {
        let to = config.count_if_any(&["pad_vocab_size_multiple"])?.filter(|&n| n > 0).unwrap_or(to);
        n_vocab = n_vocab.map(|n| n.next_multiple_of(to));
    }
    if let Some(n) = n_vocab.filter(|&n| n > N_TOKENS_MAX) {
        return Err(ConvertError::invalid(format!("config.json: 'vocab_size' is {n}, which cannot be")));
    }
    let mut writer = Writer { folder, config, metadata, n_vocab, settings };
    match kind {
        VocabKind::Bpe | VocabKind::SpmOrBpe | VocabKind::Padded(_) | VocabKind::Glm4 => writer.spm_or_bpe(pre, kind),
        VocabKind::Llama => writer.llama(pre),
        VocabKind::Gemma | VocabKind::Gemma1 => writer.gemma(pre, kind),
        VocabKind::Phi3 => writer.phi3(pre),
        VocabKind::WordPiece => writer.wordpiece(),
        VocabKind::Roberta => {
            let n = writer.spm_or_bpe(pre, kind)?;
            writer.type_count()?;
            Ok(n)
        }
    }
}

impl Writer<'_> {
    /// Takes SentencePiece where the folder has it and the architecture may, else what `tokenizer.json` says.
    fn spm_or_bpe(&mut self, pre: Option<&str>, kind: VocabKind) -> Result<usize, ConvertError> {
        let may_be_spm = !matches!(kind, VocabKind::Bpe | VocabKind::Glm4 | VocabKind::Roberta);
        let json = TokenizerJson::read(self.folder)?;
        if may_be_spm && self.folder.has("tokenizer.model") && !(matches!(kind, VocabKind::Padded(8)) && json.is_some())
        {
            return self.sentencepiece(json.as_ref(), false);
        }
        let Some(json) = json else {
            let line = "has no tokenizer.json or tokenizer.model; download it again";
            return Err(ConvertError::invalid(line).at(self.folder.path()));
        };
        match json.is_sentencepiece() {
            true => self.sentencepiece_of_json(&json),
            false => self.bpe(&json, pre, kind),
        }
    }

    fn llama(&mut self, pre: Option<&str>) -> Result<usize, ConvertError> {
        if let Some(adds) = self.settings["add_prefix_space"].as_bool() {
            self.metadata.set("tokenizer.ggml.add_space_prefix", adds);
        }
        let n = self.spm_or_bpe(pre, VocabKind::Llama)?;
        match self.n_vocab {
            // Code Llama's end of a gap.
            Some(32016) => self.metadata.set("tokenizer.ggml.eot_token_id", 32010u32),
            // Granite's first models.
            Some(49152) => self.metadata.set("tokenizer.ggml.add_bos_token", false),
            _ => {}
        }
        Ok(n)
    }

    fn gemma(&mut self, pre: Option<&str>, kind: VocabKind) -> Result<usize, ConvertError> {
        let n = self.spm_or_bpe(pre, VocabKind::SpmOrBpe)?;
        if kind == VocabKind::Gemma1 {
            self.metadata.set("tokenizer.ggml.eot_token_id", 107u32);
        }
        if self.metadata.str("tokenizer.ggml.model").ok().flatten() == Some("llama") {
            self.metadata.set("tokenizer.ggml.add_space_prefix", false);
        }
        Ok(n)
    }

    fn phi3(&mut self, pre: Option<&str>) -> Result<usize, ConvertError> {
        let json = TokenizerJson::read(self.folder)?;
        match self.settings["tokenizer_class"] == "GPT2Tokenizer" || !self.folder.has("tokenizer.model") {
            true => self.spm_or_bpe(pre, VocabKind::SpmOrBpe),
            false => self.sentencepiece(json.as_ref(), true),
        }
    }

    /// Writes byte-pair encoding.
    fn bpe(&mut self, json: &TokenizerJson, pre: Option<&str>, kind: VocabKind) -> Result<usize, ConvertError> {
        if json.kind() != "BPE" {
            return Err(unsupported(json.kind()));
        }
        let tokens = self.tokens(json)?;
        let n = tokens.texts.len();
        self.metadata.set("tokenizer.ggml.model", "gpt2");
        self.metadata.set("tokenizer.ggml.pre", "default");
        self.put(tokens);
        let merges = json.merges()?;
        if !merges.is_empty() {
            self.metadata.set("tokenizer.ggml.merges", merges);
        }
        let mut special = Special::read(self.folder, Some(json), None)?;
        if kind == VocabKind::Glm4 {
            let id = |token: &str| json.added_id(token).map(u64::from);
            for (kind, token) in
                [("eos", "<|endoftext|>"), ("eot", "<|user|>"), ("unk", "<|endoftext|>"), ("bos", "<|endoftext|>")]
            {
                special.set(kind, id(token), None);
            }
        }
        special.write(self.metadata);
        let name = match pre {
            Some(pre) => pre.to_owned(),
            None => pre::find(json, self.metadata)?,
        };
        self.metadata.set("tokenizer.ggml.pre", name);
        Ok(n)
    }

    /// Writes WordPiece: in front of what begins a word stands `▁`, and the `##` of what goes on with one is left out.
    fn wordpiece(&mut self) -> Result<usize, ConvertError> {
        let json = match TokenizerJson::read(self.folder)? {
            Some(json) => json,
            None => self.word_list()?,
        };
        if json.kind() != "WordPiece" {
            return Err(unsupported(json.kind()));
        }
        let mut tokens = self.tokens(&json)?;
        let n = tokens.texts.len();
        for (text, &kind) in tokens.texts.iter_mut().zip(&tokens.types) {
            *text = match text.strip_prefix("##") {
                _ if kind == CONTROL => continue,
                Some(rest) => rest.to_owned(),
                None => format!("▁{text}"),
            };
        }
        self.type_count()?;
        self.metadata.set("tokenizer.ggml.model", "bert");
        self.metadata.set("tokenizer.ggml.pre", "default");
        self.put(tokens);
        Special::read(self.folder, Some(&json), Some(n))?.write(self.metadata);
        let name = pre::by_ids(self.metadata)?;
        self.metadata.set("tokenizer.ggml.pre", name.unwrap_or("default"));
        Ok(n)
    }

    /// Makes a tokenizer of a list of words, as frameworks do.
    fn word_list(&self) -> Result<TokenizerJson, ConvertError> {
        let Some(text) = self.folder.text("vocab.txt")? else {
            let line = "has no tokenizer.json or vocab.txt; download it again";
            return Err(ConvertError::invalid(line).at(self.folder.path()));
        };
        // One more than there may be has an id that is refused.
        let words: Vec<&str> = text.lines().take(N_TOKENS_MAX + 1).collect();
        let id = |word: &str| words.iter().position(|one| *one == word);
        let named = |kind: &str, default: &str| {
            let token = &self.settings[format!("{kind}_token")];
            token.as_str().or_else(|| token["content"].as_str()).unwrap_or(default).to_owned()
        };
        let specials = [("unk", "[UNK]"), ("sep", "[SEP]"), ("pad", "[PAD]"), ("cls", "[CLS]"), ("mask", "[MASK]")];
        let specials: Vec<String> = specials.iter().map(|(kind, default)| named(kind, default)).collect();
        let added = |word: &String| Some(json!({ "id": id(word)?, "content": word, "special": true }));
        let token = |word: &str| json!({ "SpecialToken": { "id": word } });
        let text = |id: &str| json!({ "Sequence": { "id": id } });
        let (sep, cls) = (&specials[1], &specials[3]);
        let lowercase = self.settings["do_lower_case"].as_bool().unwrap_or(true);
        let vocab: serde_json::Map<String, Json> =
            words.iter().enumerate().map(|(id, word)| ((*word).to_owned(), id.into())).collect();
        TokenizerJson::of(json!({
            "model": { "type": "WordPiece", "vocab": vocab },
            "added_tokens": specials.iter().filter_map(added).collect::<Vec<_>>(),
            "normalizer": {
                "type": "BertNormalizer", "lowercase": lowercase, "strip_accents": self.settings["strip_accents"],
            },
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [token(cls), text("A"), token(sep)],
                "pair": [token(cls), text("A"), token(sep), text("B"), token(sep)],
            },
        }))
    }

    fn type_count(&mut self) -> Result<(), ConvertError> {
        let n = self.config.count_if_any(&["type_vocab_size"])?.unwrap_or(1);
        self.metadata.set("tokenizer.ggml.token_type_count", n as u32);
        Ok(())
    }

    /// Writes the pieces of `tokenizer.model`, with what other files add.
    fn sentencepiece(&mut self, json: Option<&TokenizerJson>, takes_json: bool) -> Result<usize, ConvertError> {
        let bytes = self.folder.bytes("tokenizer.model")?.unwrap_or_default();
        let path = self.folder.path().join("tokenizer.model");
        let pieces = sentencepiece::pieces(&bytes).map_err(|error| error.at(&path))?;
        let mut tokens = Tokens::padding(self.n_vocab.unwrap_or(pieces.len()));
        for (id, piece) in pieces.into_iter().enumerate().take(tokens.texts.len()) {
            // Pieces that users defined are as others.
            let kind = if piece.kind == USER_DEFINED { NORMAL } else { piece.kind };
            tokens.set(id, piece.text, kind, piece.score);
        }
        let older = self.folder.json("added_tokens.json")?.unwrap_or_default();
        for (token, id) in older.as_object().into_iter().flatten() {
            if let Some(id) = id.as_u64() {
                tokens.set(id as usize, token.clone(), USER_DEFINED, SCORE_OF_ADDED);
            }
        }
        self.added_of_settings()?.into_iter().for_each(|added| tokens.add(added, !takes_json));
        if takes_json {
            json.into_iter().flat_map(|json| &json.added).for_each(|added| tokens.add(added.clone(), false));
        }
        self.put_sentencepiece(tokens, json)
    }

    /// Writes SentencePiece's byte-pair encoding as `tokenizer.json` has it. A token's score says which merge makes it, so that pairs are
    /// merged in their order.
    fn sentencepiece_of_json(&mut self, json: &TokenizerJson) -> Result<usize, ConvertError> {
        let n = self.n_vocab.unwrap_or(0).max(json.vocab.len());
        let mut tokens = Tokens::padding(n);
        let mut ranks: HashMap<String, usize> = HashMap::new();
        for (rank, merge) in json.merges()?.into_iter().enumerate() {
            ranks.entry(merge.replacen(' ', "", 1)).or_insert(rank);
        }
        for (text, id) in &json.vocab {
            let is_byte = text.len() == 6 && text.starts_with("<0x") && text.ends_with('>');
            let score = ranks.get(text).map_or(SCORE_OF_SINGLE, |&rank| -(rank as f32));
            tokens.set(*id as usize, text.clone(), if is_byte { BYTE } else { NORMAL }, score);
        }
        for added in json.added.iter().cloned().chain(self.added_of_settings()?) {
            if added.id as usize >= tokens.texts.len() {
                return Err(too_many(added.id as usize + 1, tokens.texts.len()));
            }
            tokens.add(added, true);
        }
        self.put_sentencepiece(tokens, Some(json))
    }

    fn put_sentencepiece(&mut self, mut tokens: Tokens, json: Option<&TokenizerJson>) -> Result<usize, ConvertError> {
        let n = tokens.texts.len();
        self.metadata.set("tokenizer.ggml.model", "llama");
        self.metadata.set("tokenizer.ggml.pre", "default");
        let scores = std::mem::take(&mut tokens.scores);
        let types = std::mem::take(&mut tokens.types);
        self.metadata.set("tokenizer.ggml.tokens", tokens.texts);
        self.metadata.set("tokenizer.ggml.scores", scores);
        self.metadata.set("tokenizer.ggml.token_type", types);
        Special::read(self.folder, json, Some(n))?.write(self.metadata);
        Ok(n)
    }

    fn put(&mut self, tokens: Tokens) {
        self.metadata.set("tokenizer.ggml.tokens", tokens.texts);
        self.metadata.set("tokenizer.ggml.token_type", tokens.types);
    }

    /// Returns the tokens that the tokenizer's settings add.
    ///
    /// # Errors
    /// One has an id that is beyond any vocabulary.
    fn added_of_settings(&self) -> Result<Vec<AddedToken>, ConvertError> {
        let mut all = Vec::new();
        for (id, token) in self.settings["added_tokens_decoder"].as_object().into_iter().flatten() {
            let (Ok(id), Some(content)) = (id.parse::<u64>(), token["content"].as_str()) else { continue };
            all.push(AddedToken {
                id: usable_id(id).ok_or_else(|| bad_id(content).at(&self.folder.path().join(SETTINGS)))?,
                content: content.to_owned(),
                is_special: token["special"].as_bool().unwrap_or(false),
            });
        }
        Ok(all)
    }

    /// Returns the tokens of `tokenizer.json` by id, with those that the settings add or call special.
    fn tokens(&self, json: &TokenizerJson) -> Result<Tokens, ConvertError> {
        let ids = json.ids();
        let mut added: HashMap<u32, AddedToken> = json.added.iter().map(|token| (token.id, token.clone())).collect();
        added.extend(self.added_of_settings()?.into_iter().map(|token| (token.id, token)));
        for content in self.named_tokens() {
            let id = ids.get(content.as_str()).copied();
            if let Some(id) = id.filter(|id| !added.contains_key(id)) {
                added.insert(id, AddedToken { id, content, is_special: true });
            }
        }
        let last = ids.values().chain(added.keys()).copied().max().unwrap_or(0) as usize;
        let n = self.n_vocab.unwrap_or(last + 1);
        if last >= n {
            return Err(too_many(last + 1, n));
        }
        let mut tokens = Tokens::padding(n);
        for (text, id) in &json.vocab {
            tokens.set(*id as usize, text.clone(), NORMAL, 0.0);
        }
        added.into_values().for_each(|token| tokens.add(token, true));
        Ok(tokens)
    }

    /// Returns the tokens that the settings name for a purpose.
    fn named_tokens(&self) -> Vec<String> {
        let text = |token: &Json| token.as_str().or_else(|| token["content"].as_str()).map(str::to_owned);
        let kinds = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"].iter();
        let one = kinds.filter_map(|kind| text(&self.settings[format!("{kind}_token")]));
        let more = self.settings["additional_special_tokens"].as_array().into_iter().flatten().filter_map(text);
        one.chain(more).collect()
    }
}

impl Tokens {
    /// Returns tokens of which none is there.
    fn padding(n: usize) -> Tokens {
        Tokens {
            texts: (0..n).map(|id| format!("[PAD{id}]")).collect(),
            types: vec![UNUSED; n],
            scores: vec![SCORE_OF_PADDING; n],
        }
    }

    /// Sets a token; ids beyond the vocabulary are left out.
    fn set(&mut self, id: usize, text: String, kind: i32, score: f32) {
        if id < self.texts.len() {
            (self.texts[id], self.types[id], self.scores[id]) = (text, kind, score);
        }
    }

    /// Sets a token that is cut out of texts. Some look special and are not called so, if `by_look` allows it.
    fn add(&mut self, token: AddedToken, by_look: bool) {
        let AddedToken { id, content, is_special } = token;
        match is_special || by_look && looks_special(&content) {
            true => self.set(id as usize, content, CONTROL, SCORE_OF_ADDED),
            // Spaces are cut out as they are written.
            false if by_look => self.set(id as usize, content.replace('▁', " "), USER_DEFINED, SCORE_OF_ADDED),
            false => self.set(id as usize, content, USER_DEFINED, SCORE_OF_ADDED),
        }
    }
}

/// Returns whether a token is meant as a control token by its look.
fn looks_special(token: &str) -> bool {
    let within = |start: &str, end: &str| token.starts_with(start) && token.ends_with(end);
    matches!(token, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || within("<|", "|>")
        || within("<｜", "｜>")
        || within("<unused", ">")
}

fn too_many(have: usize, want: usize) -> ConvertError {
    ConvertError::invalid(format!("the tokenizer has {have} tokens, config.json says {want}"))
}

fn unsupported(kind: &str) -> ConvertError {
    let line = format!("a tokenizer of type '{}' is not converted; BPE, WordPiece and SentencePiece are", shown(kind));
    ConvertError::unsupported(line)
}
