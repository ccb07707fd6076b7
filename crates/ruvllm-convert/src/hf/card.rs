//! `general.*`: who made the model, what it is called and how it is to be sampled, as its card, its configuration and its folder's name
//! say. The rules are those of llama.cpp's converter.

use regex::Regex;
use ruvllm_gguf::Metadata;

use super::folder::Folder;
use super::front_matter::{FrontMatter, read as read_front_matter};
use crate::error::ConvertError;

/// Numbers of parameters of a model.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ParameterCounts {
    pub(super) total: u64,
    /// Parameters outside the experts.
    pub(super) shared: u64,
    /// Parameters of one expert in each stack.
    pub(super) expert: u64,
    /// Experts in a stack.
    pub(super) n_experts: u64,
}

/// Parts of a model's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NameParts {
    full: Option<String>,
    organization: Option<String>,
    basename: Option<String>,
    finetune: Option<String>,
    version: Option<String>,
    size_label: Option<String>,
}

/// Options of reading a card.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CardOptions<'a> {
    /// Takes the place of the model's name.
    pub(super) name: Option<&'a str>,
    pub(super) is_left_out: bool,
}

/// Writes the keys.
///
/// # Errors
/// A file cannot be read.
pub(super) fn write(
    folder: &Folder,
    counts: ParameterCounts,
    options: CardOptions<'_>,
    metadata: &mut Metadata,
) -> Result<(), ConvertError> {
    sampling(folder, metadata)?;
    let text = if options.is_left_out { None } else { folder.text(super::CARD)? };
    let card = text.map(|text| read_front_matter(&text)).unwrap_or_default();
    let config = folder.json("config.json")?.unwrap_or_default();
    let of_card = |keys: &[&str]| keys.iter().find_map(|key| card.text(key)).map(str::to_owned);
    let mut own = NameParts {
        full: of_card(&["name", "model_name"]),
        organization: of_card(&["organization", "model_organization"]),
        basename: of_card(&["basename", "model_basename", "model_type"]),
        finetune: of_card(&["finetune", "model_finetune"]),
        version: of_card(&["version", "model_version"]),
        size_label: of_card(&["size_label", "model_size_label"]),
    };
    let by_path = config["_name_or_path"].as_str().filter(|id| id.matches('/').count() <= 1 && !id.is_empty());
    for id in by_path.into_iter().chain([folder.name().as_str()]) {
        own.fill(NameParts::of(id, counts.total));
    }
    let mut set = |key: &str, value: Option<String>| {
        if let Some(value) = value {
            metadata.set(format!("general.{key}"), value);
        }
    };
    set("name", options.name.map(str::to_owned).or(own.full).or_else(|| Some(folder.name())));
    set("author", of_card(&["author", "model_author", "model_creator"]));
    set("version", own.version);
    set("organization", own.organization);
    set("finetune", own.finetune);
    set("basename", own.basename);
    set("description", of_card(&["description", "model_description"]));
    set("size_label", own.size_label.or_else(|| (counts.total > 0).then(|| size_label(counts))));
    set("license", card.list("license").filter(|all| !all.is_empty()).map(|all| all.join(",")));
    set("license.name", of_card(&["license_name"]));
    set("license.link", of_card(&["license_link"]));
    set("source.url", of_card(&["url", "model_url"]));
    set("source.doi", of_card(&["doi", "model_doi"]));
    set("source.uuid", of_card(&["uuid", "model_uuid"]));
    set("source.repo_url", of_card(&["repo_url", "model_repo_url"]));
    related(&card, &["base_model", "base_models", "base_model_sources"], "base_model", counts.total, metadata);
    related(&card, &["datasets", "dataset", "dataset_sources"], "dataset", counts.total, metadata);
    lists(&card, metadata);
    Ok(())
}

/// Writes what the configuration of generation says of sampling.
fn sampling(folder: &Folder, metadata: &mut Metadata) -> Result<(), ConvertError> {
    // It need not be of use.
    let Ok(Some(config)) = folder.json("generation_config.json") else { return Ok(()) };
    let number = |keys: &[&str]| keys.iter().find_map(|key| config[*key].as_f64());
    for (key, from) in [("top_k", &["top_k"][..]), ("penalty_last_n", &["penalty_last_n"]), ("mirostat", &["mirostat"])]
    {
        if let Some(n) = from.iter().find_map(|key| config[*key].as_i64()).and_then(|n| i32::try_from(n).ok()) {
            metadata.set(format!("general.sampling.{key}"), n);
        }
    }
    for (key, from) in [
        ("top_p", &["top_p"][..]),
        ("min_p", &["min_p"]),
        ("xtc_probability", &["xtc_probability"]),
        ("xtc_threshold", &["xtc_threshold"]),
        ("temp", &["temperature"]),
        ("penalty_repeat", &["penalty_repeat", "repetition_penalty"]),
        ("mirostat_tau", &["mirostat_tau"]),
        ("mirostat_eta", &["mirostat_eta"]),
    ] {
        if let Some(x) = number(from) {
            metadata.set(format!("general.sampling.{key}"), x as f32);
        }
    }
    if let Some(text) = config["sequence"].as_str() {
        metadata.set("general.sampling.sequence", text);
    }
    Ok(())
}

/// Writes models or data sets that a model comes from.
fn related(card: &FrontMatter, keys: &[&str], to: &str, n_parameters: u64, metadata: &mut Metadata) {
    let Some(ids) = keys.iter().find_map(|key| card.list(key)) else { return };
    metadata.set(format!("general.{to}.count"), ids.len() as u32);
    for (i, id) in ids.iter().enumerate() {
        let mut set = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                metadata.set(format!("general.{to}.{i}.{key}"), value);
            }
        };
        let is_url = ["http://", "https://", "ssh://"].iter().any(|start| id.starts_with(start));
        let of_hub = id.strip_prefix("https://huggingface.co/").or_else(|| id.strip_prefix("http://huggingface.co/"));
        let id_of_hub = match is_url {
            true => of_hub.filter(|id| id.matches('/').count() == 1 && !id.starts_with('/') && !id.ends_with('/')),
            false => Some(*id),
        };
        let parts = id_of_hub.map(|id| NameParts::of(id, n_parameters)).unwrap_or_default();
        let hub = parts.organization.as_ref().zip(id_of_hub.and_then(|id| id.split_once('/')));
        set("name", parts.full);
        set("version", parts.version);
        let url = if is_url { Some((*id).to_owned()) } else { hub.map(|_| format!("https://huggingface.co/{id}")) };
        set("organization", parts.organization.clone());
        set("repo_url", url);
    }
}

/// Writes tags and languages.
fn lists(card: &FrontMatter, metadata: &mut Metadata) {
    for (to, from) in [("tags", ["tags", "pipeline_tag"]), ("languages", ["languages", "language"])] {
        let all: Vec<&str> = from.iter().filter_map(|key| card.list(key)).flatten().collect();
        if !all.is_empty() {
            metadata.set(format!("general.{to}"), all);
        }
    }
}

/// Returns the size of a model as people write it.
fn size_label(counts: ParameterCounts) -> String {
    match counts.n_experts {
        0 => rounded(counts.total),
        n => format!("{n}x{}", rounded(counts.shared + counts.expert)),
    }
}

/// Writes a number of parameters with two digits at least.
fn rounded(n: u64) -> String {
    let n = n as f64;
    let (scaled, suffix) = match n {
        n if n > 1e12 => (n * 1e-12, "T"),
        n if n > 1e9 => (n * 1e-9, "B"),
        n if n > 1e6 => (n * 1e-6, "M"),
        n => (n * 1e-3, "K"),
    };
    let whole = scaled.round_ties_even().to_string();
    let n_digits = 2usize.saturating_sub(whole.trim_start_matches('0').len());
    format!("{scaled:.n_digits$}{suffix}")
}

impl NameParts {
    /// Takes a name apart, and writes its parts as titles.
    fn of(id: &str, n_parameters: u64) -> NameParts {
        let parts = components(id, n_parameters);
        NameParts {
            full: parts.full.map(|name| title(&name)),
            organization: parts.organization.map(|name| title(&name)),
            ..parts
        }
    }

    /// Takes what is not there yet.
    fn fill(&mut self, other: NameParts) {
        for (own, other) in [
            (&mut self.full, other.full),
            (&mut self.organization, other.organization),
            (&mut self.basename, other.basename),
            (&mut self.finetune, other.finetune),
            (&mut self.version, other.version),
            (&mut self.size_label, other.size_label),
        ] {
            *own = own.take().or(other);
        }
    }
}

/// Writes a name as a title: words begin with a capital, acronyms and versions stay.
fn title(name: &str) -> String {
    let version = pattern(r"^(v\d+(?:\.\d+)*|\d.*)$");
    let one = |word: &str| {
        let is_lower = word.chars().any(char::is_lowercase) && !word.chars().any(char::is_uppercase);
        if !is_lower || version.is_match(word) {
            return word.to_owned();
        }
        let mut in_word = false;
        let capital = |c: char| {
            let was_in_word = std::mem::replace(&mut in_word, c.is_alphabetic());
            if c.is_alphabetic() && !was_in_word { c.to_uppercase().collect::<String>() } else { c.to_string() }
        };
        word.chars().map(capital).collect()
    };
    name.trim().replace('-', " ").split_whitespace().map(one).collect::<Vec<String>>().join(" ")
}

/// Kind of a part of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Basename,
    SizeLabel,
    Finetune,
    Version,
    Type,
}

/// Takes a name apart by what its parts look like.
fn components(id: &str, n_parameters: u64) -> NameParts {
    if id.contains(' ') {
        return NameParts { full: Some(id.to_owned()), ..NameParts::default() };
    }
    let (organization, full) = match id.split_once('/') {
        Some((organization, full)) => (Some(organization), full),
        None => (None, id),
    };
    let organization = organization.filter(|name| !name.starts_with('.')).map(str::to_owned);
    let mut parts: Vec<(String, Vec<Kind>)> = Vec::new();
    for part in full.split('-').filter(|part| !part.is_empty()) {
        let (text, kind) = kind_of(part, parts.is_empty(), n_parameters);
        parts.push((text, kind.into_iter().collect()));
    }
    // Sizes in words are none where there are sizes in numbers.
    let is_size = |kinds: &[Kind]| kinds.contains(&Kind::SizeLabel);
    if parts.iter().any(|(text, kinds)| is_size(kinds) && text.bytes().any(|byte| byte.is_ascii_digit())) {
        for (text, kinds) in &mut parts {
            if is_size(kinds) && text.chars().all(char::is_alphabetic) {
                kinds.retain(|kind| *kind != Kind::SizeLabel);
            }
        }
    }
    let mut at_start = true;
    for (text, kinds) in &mut parts {
        let is_word = kinds.is_empty() && text.starts_with(char::is_alphabetic);
        if at_start && (is_word || kinds.contains(&Kind::Version)) {
            kinds.push(Kind::Basename);
        } else {
            at_start = false;
            if kinds.is_empty() {
                kinds.push(Kind::Finetune);
            }
        }
    }
    for (_, kinds) in parts.iter_mut().rev() {
        if !(kinds.contains(&Kind::Basename) && kinds.len() > 1) {
            break;
        }
        kinds.retain(|kind| *kind != Kind::Basename);
    }
    named(full, organization, &parts)
}

/// Joins the parts of a name by kind.
fn named(full: &str, organization: Option<String>, parts: &[(String, Vec<Kind>)]) -> NameParts {
    let join = |want: &dyn Fn(&[Kind]) -> bool| {
        let found: Vec<&str> = parts.iter().filter(|(_, kinds)| want(kinds)).map(|(text, _)| text.as_str()).collect();
        (!found.is_empty()).then(|| found.join("-"))
    };
    let mut sizes: Vec<&str> = Vec::new();
    for (text, kinds) in parts {
        if kinds.contains(&Kind::SizeLabel) && !sizes.contains(&text.as_str()) {
            sizes.push(text);
        }
    }
    let (size_label, finetune) =
        ((!sizes.is_empty()).then(|| sizes.join("-")), join(&|kinds| kinds.contains(&Kind::Finetune)));
    let version = join(&|kinds| kinds.contains(&Kind::Version) && !kinds.contains(&Kind::Basename));
    let is_clear = size_label.is_some() || finetune.is_some() || version.is_some();
    let basename = join(&|kinds| kinds.contains(&Kind::Basename)).filter(|_| is_clear);
    NameParts { full: Some(full.to_owned()), organization, basename, finetune, version, size_label }
}

/// Finds the kind of a part of a name, and writes it as it is usual.
fn kind_of(part: &str, is_first: bool, n_parameters: u64) -> (String, Option<Kind>) {
    if pattern(r"(?i)^(v|iter)?\d+([.]\d+)*$").is_match(part) {
        return (part.to_owned(), Some(Kind::Version));
    }
    if pattern(r"(?i)^(i?q\d(_\w)*|b?fp?(16|32))$").is_match(part) {
        return (part.to_uppercase(), Some(Kind::Type));
    }
    let size = r"(?i)^(([A]|\d+[x])?\d+([._]\d+)?[KMBT][\d]?|small|mini|medium|large|x?xl)$";
    if !is_first && pattern(size).is_match(part) {
        return size_of(part, n_parameters);
    }
    match !is_first && pattern(r"(?i)^(chat|instruct|vision|lora)$").is_match(part) {
        true => (part.to_owned(), Some(Kind::Finetune)),
        false => (part.to_owned(), None),
    }
}

/// Writes a size as it is usual. One that is far from the model's own is something else, such as a context.
fn size_of(part: &str, n_parameters: u64) -> (String, Option<Kind>) {
    let mut text: Vec<char> = part.replace('_', ".").chars().collect();
    // 7b1 is 7.1b.
    if let [.., unit, digit] = text[..]
        && digit.is_ascii_digit()
    {
        text.truncate(text.len() - 2);
        text.extend(['.', digit, unit]);
    }
    if let [.., before, unit] = &mut text[..]
        && before.is_ascii_digit()
        && "kmbt".contains(*unit)
    {
        *unit = unit.to_ascii_uppercase();
    }
    let unit = text.last().copied().unwrap_or_default();
    let number: Option<f64> = text[..text.len() - 1].iter().collect::<String>().parse().ok();
    let power = "KMBT".find(unit).map_or(-1, |power| power as i32 + 1);
    let label = number.map(|number| number * 1000f64.powi(power));
    let is_far = |label: f64| (label - n_parameters as f64).abs() > (7 * n_parameters / 8) as f64;
    if n_parameters > 0 && label.is_some_and(is_far) {
        if let Some(unit) = text.last_mut() {
            *unit = unit.to_ascii_lowercase();
        }
        return (text.into_iter().collect(), Some(Kind::Finetune));
    }
    (text.into_iter().collect(), Some(Kind::SizeLabel))
}

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("it is one of ours")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let check = |id: &str, n: u64, want: [Option<&str>; 6]| {
            let parts = NameParts::of(id, n);
            let have =
                [&parts.full, &parts.organization, &parts.basename, &parts.finetune, &parts.version, &parts.size_label];
            assert_eq!(have.map(|part| part.as_deref()), want, "{id}");
        };
        check(
            "Qwen/Qwen2.5-Coder-0.5B-Instruct",
            0,
            [
                Some("Qwen2.5 Coder 0.5B Instruct"),
                Some("Qwen"),
                Some("Qwen2.5-Coder"),
                Some("Instruct"),
                None,
                Some("0.5B"),
            ],
        );
        check(
            "mistralai/Mistral-7b-v0.1",
            7_000_000_000,
            [Some("Mistral 7b v0.1"), Some("Mistralai"), Some("Mistral"), None, Some("v0.1"), Some("7B")],
        );
        check("tiny", 0, [Some("Tiny"), None, None, None, None, None]);
        check("my model", 0, [Some("My Model"), None, None, None, None, None]);
        check(
            "Phi-3-mini-4k-instruct",
            3_800_000_000,
            [Some("Phi 3 Mini 4k Instruct"), None, Some("Phi-3"), Some("4k-instruct"), None, Some("mini")],
        );
    }

    #[test]
    fn sizes_have_two_digits() {
        let check = |n: u64, want: &str| assert_eq!(rounded(n), want);
        check(134_515_008, "135M");
        check(7_241_732_096, "7.2B");
        check(70_553_706_496, "71B");
        check(1_235_814_400, "1.2B");
        check(12_345, "12K");
        check(500, "0.50K");
        let experts = ParameterCounts { total: 46, shared: 1_605_636_096, expert: 5_637_144_576, n_experts: 8 };
        assert_eq!(size_label(experts), "8x7.2B");
    }
}
