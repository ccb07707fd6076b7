//! Special tokens of a folder: their ids, which of them are added to texts, how texts are normalised, and chat templates. The rules
//! are those of llama.cpp's converter, so that files are equal.

use ruvllm_gguf::Metadata;
use serde_json::Value as Json;

use super::tokenizer_json::TokenizerJson;
use crate::error::ConvertError;
use crate::hf::folder::Folder;

/// Kinds of special tokens, and the keys of their ids. Kinds without a key are only looked at.
const KINDS: [(&str, &str); 7] = [
    ("bos", "bos"),
    ("eos", "eos"),
    ("unk", "unknown"),
    ("sep", "seperator"),
    ("pad", "padding"),
    ("cls", ""),
    ("mask", "mask"),
];
/// Kinds that a second end of texts becomes.
const SECOND_ENDS: [(&str, &str); 2] = [("eot", "eot"), ("eom", "eom")];

/// Special tokens.
#[derive(Debug, Default)]
pub(super) struct Special {
    ids: Vec<(&'static str, u32)>,
    adds: Vec<(&'static str, bool)>,
    lowercase: Option<bool>,
    strip_accents: Option<bool>,
    /// Chat templates: name (empty: the only one) and text.
    templates: Vec<(String, String)>,
}

/// The tokens that the settings of a tokenizer name, by kind.
struct Named {
    kinds: Vec<&'static str>,
    tokens: Vec<(&'static str, Option<String>)>,
    has_settings: bool,
}

impl Special {
    /// Reads the special tokens of a folder. Ids that are not below `n_vocab` are left out.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn read(
        folder: &Folder,
        tokenizer: Option<&TokenizerJson>,
        n_vocab: Option<usize>,
    ) -> Result<Special, ConvertError> {
        let settings = folder.json("tokenizer_config.json")?;
        let mut special = Special::default();
        let mut named = Named::new(settings.as_ref());
        if let Some(tokenizer) = tokenizer {
            special.normalizer(tokenizer.normalizer());
            named.stand_in();
            let processor = tokenizer.post_processor();
            match processor["processors"].as_array() {
                Some(all) => all.iter().for_each(|one| special.processor(one, &mut named)),
                None => special.processor(processor, &mut named),
            }
        }
        special.templates = templates(folder, settings.as_ref())?;
        if let Some(settings) = &settings {
            special.settings(settings, &named, tokenizer, n_vocab);
        }
        let config = folder.json("config.json")?.unwrap_or_default();
        for kind in &named.kinds {
            let key = format!("{kind}_token_id");
            let id = Some(&config[&key]).filter(|id| !id.is_null()).unwrap_or(&config["text_config"][&key]);
            special.set(kind, id.as_u64(), n_vocab);
        }
        Ok(special)
    }

    /// Sets the id of a kind that has none yet.
    pub(super) fn set(&mut self, kind: &'static str, id: Option<u64>, n_vocab: Option<usize>) {
        let Some(id) = id.and_then(|id| u32::try_from(id).ok()) else { return };
        let is_token = n_vocab.is_none_or(|n| (id as usize) < n);
        if is_token && !self.ids.iter().any(|(own, _)| *own == kind) {
            self.ids.push((kind, id));
        }
    }

    fn set_add(&mut self, kind: &'static str, add: bool) {
        self.adds.retain(|(own, _)| *own != kind);
        self.adds.push((kind, add));
    }

    fn add(&self, kind: &str) -> Option<bool> {
        self.adds.iter().find(|(own, _)| *own == kind).map(|&(_, add)| add)
    }

    fn normalizer(&mut self, normalizer: &Json) {
        match normalizer["type"].as_str() {
            Some("Lowercase") => self.lowercase = Some(true),
            Some("StripAccents") => self.strip_accents = Some(true),
            Some("BertNormalizer") => {
                self.lowercase = normalizer["lowercase"].as_bool().or(self.lowercase);
                self.strip_accents = normalizer["strip_accents"].as_bool().or(self.strip_accents);
            }
            Some("Sequence") => {
                normalizer["normalizers"].as_array().into_iter().flatten().for_each(|one| self.normalizer(one));
            }
            _ => {}
        }
    }

    /// Looks at what a tokenizer adds to texts.
    fn processor(&mut self, processor: &Json, named: &mut Named) {
        match processor["type"].as_str() {
            Some("ByteLevel") => {
                for kind in ["bos", "eos"] {
                    if self.add(kind).is_none() {
                        self.set_add(kind, false);
                    }
                }
            }
            Some("RobertaProcessing") => {
                ["bos", "eos", "sep"].into_iter().for_each(|kind| self.set_add(kind, true));
                for (kind, other) in [("cls", "bos"), ("sep", "eos")] {
                    if named.get(kind).is_none() && named.has_settings {
                        let own = processor[kind][0].as_str().map(str::to_owned);
                        named.put(kind, own.or_else(|| named.get(other).map(str::to_owned)));
                    }
                }
            }
            Some("TemplateProcessing") => self.template(processor, named),
            _ => {}
        }
    }

    fn template(&mut self, processor: &Json, named: &mut Named) {
        let special = |part: &Json| part["SpecialToken"]["id"].as_str().filter(|id| !id.is_empty()).map(str::to_owned);
        let single = processor["single"].as_array().map_or(&[][..], Vec::as_slice);
        let (mut first, mut last) = (None, None);
        if let [begin, .., end] = single {
            first = special(begin);
            last = special(end);
        }
        if let Some(first) = &first {
            if named.has_settings && named.get("bos") != Some(first) && named.get("cls") != Some(first) {
                for kind in ["bos", "cls"] {
                    if named.get(kind).is_none() {
                        named.put(kind, Some(first.clone()));
                    }
                }
            }
            let is_known = !named.has_settings || [named.get("bos"), named.get("cls")].contains(&Some(first));
            self.set_add("bos", is_known);
        }
        if let Some(last) = &last {
            if named.has_settings && named.get("eos") != Some(last) {
                named.second_end();
                named.put("eos", Some(last.clone()));
            }
            self.set_add("eos", true);
        }
        self.pair(processor, named, first.as_deref(), last.as_deref());
    }

    /// Finds whether something stands between the texts of a pair.
    fn pair(&mut self, processor: &Json, named: &mut Named, first: Option<&str>, last: Option<&str>) {
        let special =
            |part: Option<&Json>| part.and_then(|part| part["SpecialToken"]["id"].as_str()).map(str::to_owned);
        let mut pair = processor["pair"].as_array().map_or(&[][..], Vec::as_slice);
        if first.is_some() && special(pair.first()).as_deref() == first {
            pair = &pair[1..];
        }
        if last.is_some() && special(pair.last()).as_deref() == last {
            pair = &pair[..pair.len() - 1];
        }
        let [begin, middle @ .., end] = pair else { return };
        let is_text = |part: &Json, name: &str| part["Sequence"]["id"].as_str() == Some(name);
        if middle.is_empty() || !is_text(begin, "A") || !is_text(end, "B") {
            return;
        }
        let separates = |part: Option<&Json>| {
            special(part).is_some_and(|id| [named.get("sep"), named.get("eos")].contains(&Some(id.as_str())))
        };
        let adds = separates(middle.first()) && last.is_none() || middle.len() == 2 && separates(middle.get(1));
        self.set_add("sep", adds);
        if adds && named.get("sep").is_none() && named.has_settings {
            named.put("sep", named.get("eos").map(str::to_owned));
        }
    }

    /// Takes what the settings name, where the tokenizer has such tokens.
    fn settings(&mut self, settings: &Json, named: &Named, tokenizer: Option<&TokenizerJson>, n_vocab: Option<usize>) {
        for &kind in &named.kinds {
            if let Some(add) = settings[format!("add_{kind}_token")].as_bool().filter(|_| self.add(kind).is_none()) {
                self.set_add(kind, add);
            }
            let id = named.get(kind).and_then(|token| tokenizer?.added_id(token));
            self.set(kind, id.map(u64::from), n_vocab);
        }
    }

    /// Writes the keys of all.
    pub(super) fn write(&self, metadata: &mut Metadata) {
        self.write_ids(metadata);
        for (kind, add) in &self.adds {
            if matches!(*kind, "bos" | "eos" | "sep") {
                metadata.set(format!("tokenizer.ggml.add_{kind}_token"), *add);
            }
        }
        self.write_templates(metadata);
        if let Some(lowercase) = self.lowercase {
            metadata.set("tokenizer.ggml.normalizer.lowercase", lowercase);
        }
        if let Some(strip) = self.strip_accents {
            metadata.set("tokenizer.ggml.normalizer.strip_accents", strip);
        }
    }

    fn write_ids(&self, metadata: &mut Metadata) {
        for (kind, id) in &self.ids {
            let key = KINDS.iter().chain(&SECOND_ENDS).find(|(own, _)| own == kind).map_or("", |(_, key)| key);
            if !key.is_empty() {
                metadata.set(format!("tokenizer.ggml.{key}_token_id"), *id);
            }
        }
    }

    fn write_templates(&self, metadata: &mut Metadata) {
        let mut names = Vec::new();
        for (name, text) in &self.templates {
            let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
            match name.as_str() {
                "" | "default" => metadata.set("tokenizer.chat_template", text.as_str()),
                _ => {
                    metadata.set(format!("tokenizer.chat_template.{name}"), text.as_str());
                    names.push(name);
                }
            }
        }
        if !names.is_empty() {
            metadata.set("tokenizer.chat_templates", names);
        }
    }
}

impl Named {
    fn new(settings: Option<&Json>) -> Named {
        let kinds: Vec<&'static str> = KINDS.iter().map(|(kind, _)| *kind).collect();
        let token = |kind: &str| {
            let token = &settings?[format!("{kind}_token")];
            token.as_str().or_else(|| token["content"].as_str()).map(str::to_owned)
        };
        let tokens = kinds.iter().map(|&kind| (kind, token(kind))).collect();
        Named { kinds, tokens, has_settings: settings.is_some() }
    }

    fn get(&self, kind: &str) -> Option<&str> {
        let token = self.tokens.iter().find(|(own, _)| *own == kind)?.1.as_deref();
        token.filter(|token| !token.is_empty())
    }

    fn put(&mut self, kind: &'static str, token: Option<String>) {
        self.tokens.retain(|(own, _)| *own != kind);
        self.tokens.push((kind, token));
    }

    /// A token of classes begins texts, and one of separation ends them, where there are no others.
    fn stand_in(&mut self) {
        for (kind, other) in [("bos", "cls"), ("eos", "sep")] {
            if self.get(kind).is_none() && self.has_settings {
                self.put(kind, self.get(other).map(str::to_owned));
            }
        }
    }

    /// Keeps the end of texts under another name, as another takes its place.
    fn second_end(&mut self) {
        let free = SECOND_ENDS.iter().map(|(kind, _)| *kind).find(|kind| !self.kinds.contains(kind));
        if let Some(kind) = free {
            self.kinds.push(kind);
            self.put(kind, self.get("eos").map(str::to_owned));
        }
    }
}

/// Finds the chat templates: in the tokenizer's settings, else in files of their own.
fn templates(folder: &Folder, settings: Option<&Json>) -> Result<Vec<(String, String)>, ConvertError> {
    let one = |text: String| vec![(String::new(), text)];
    match settings.map(|settings| &settings["chat_template"]) {
        Some(Json::String(text)) => return Ok(one(text.clone())),
        Some(Json::Array(all)) => return Ok(named_templates(all)),
        _ => {}
    }
    if let Some(text) = folder.text("chat_template.jinja")? {
        let mut templates = vec![("default".to_owned(), text)];
        for name in folder.names("additional_chat_templates", |name| name.ends_with(".jinja"))? {
            if let Some(text) = folder.text(&format!("additional_chat_templates/{name}"))? {
                templates.push((name.trim_end_matches(".jinja").to_owned(), text));
            }
        }
        return Ok(templates);
    }
    let json = folder.json("chat_template.json")?.unwrap_or_default();
    Ok(match &json["chat_template"] {
        Json::String(text) => one(text.clone()),
        Json::Array(all) => named_templates(all),
        _ => Vec::new(),
    })
}

fn named_templates(all: &[Json]) -> Vec<(String, String)> {
    let text = |value: &Json| value.as_str().map(str::to_owned);
    all.iter().filter_map(|one| Some((text(&one["name"])?, text(&one["template"])?))).collect()
}
