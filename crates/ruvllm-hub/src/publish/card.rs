//! The model card: a page about a model, made from what its files say.

use std::fmt::Write as _;

use serde_json::Value;

use crate::error::HubError;
use crate::figures::bytes;
use crate::publish::PublishedFile;
use crate::publish::facts::{ModelFacts, ModelKind};
use crate::publish::table::{escaped, markdown};
use crate::shards::ShardName;

/// Line before the rows of files; it also tells a card that was made from one that a person wrote.
const BEGIN: &str = "<!-- ruvllm:files -->";
/// Line after the rows of files.
const END: &str = "<!-- /ruvllm:files -->";
/// The most rows that are kept of an older card.
const N_ROWS_MAX: usize = 1000;

/// Parts of a model card.
#[derive(Clone, Debug)]
pub(super) struct CardText {
    before: String,
    rows: Vec<(String, String)>,
    after: String,
}

impl CardText {
    /// # Errors
    /// The table holds no figures.
    pub(super) fn new(
        repo: &str,
        facts: &ModelFacts,
        files: &[PublishedFile],
        table: Option<&Value>,
    ) -> Result<CardText, HubError> {
        let mut before = front_matter(facts);
        let name = facts.name.as_deref().unwrap_or_else(|| repo.rsplit('/').next().unwrap_or(repo));
        let _ = write!(before, "\n# {}\n\n{}\n\n| | |\n|---|---|\n", escaped(name), about(facts));
        let mut line = |name: &str, value: &str| before += &format!("| {name} | {} |\n", escaped(value));
        line("Base", facts.base.as_deref().unwrap_or("not said"));
        line("Licence", facts.license.as_deref().unwrap_or("not said; that of the base holds"));
        line("Architecture", facts.architecture.as_deref().unwrap_or("not said"));
        facts.lines.iter().for_each(|(name, value)| line(name, value));
        before += "\n## Files\n\n| file | quantisation | size |\n|---|---|---|\n";
        let mut after = "\nSHA-256 sums are in `SHA256SUMS`.\n".to_owned();
        if let Some(table) = table {
            let _ = write!(after, "\n## Measured\n\n{}", markdown(table)?);
        }
        after += &usage(repo, facts, files);
        let rows = files.iter().filter(|file| file.name.ends_with(".gguf") || file.name.ends_with(".safetensors"));
        Ok(CardText { before, rows: rows.map(|file| (file.name.clone(), row(file, facts))).collect(), after })
    }

    /// Returns the card, with the rows of an older one whose files are not published now.
    pub(super) fn text(&self, older: &[(String, String)]) -> String {
        let mut rows: Vec<&(String, String)> = self.rows.iter().collect();
        rows.extend(older.iter().filter(|(name, _)| self.rows.iter().all(|(own, _)| own != name)));
        rows.sort();
        let rows: String = rows.iter().map(|(_, row)| format!("{row}\n")).collect();
        // A comment would end the table, so the marks stand around it.
        let (head, table_head) = self.before.rsplit_once("\n| file |").unwrap_or((self.before.as_str(), ""));
        format!("{head}\n{BEGIN}\n| file |{table_head}{rows}{END}\n{}", self.after)
    }
}

/// Returns the rows of files of a card that was made here, each with the file's name; `None` for one that a person wrote.
pub(super) fn rows(card: &str) -> Option<Vec<(String, String)>> {
    let (_, rest) = card.split_once(BEGIN)?;
    let (rows, _) = rest.split_once(END)?;
    let named = |line: &str| Some((line.strip_prefix("| `")?.split_once('`')?.0.to_owned(), line.to_owned()));
    Some(rows.lines().filter_map(named).take(N_ROWS_MAX).collect())
}

fn row(file: &PublishedFile, facts: &ModelFacts) -> String {
    let first = ShardName::parse(&file.name).map_or_else(|| file.name.clone(), |shard| shard.part(1));
    let quantization = facts.quantizations.iter().find(|(name, _)| *name == first);
    let quantization = quantization.map_or("", |(_, quantization)| quantization);
    format!("| `{}` | {quantization} | {} |", file.name.replace(['`', '|'], "-"), bytes(file.n_bytes))
}

/// The part that the hub reads. Texts are written as JSON strings, which are YAML too.
fn front_matter(facts: &ModelFacts) -> String {
    let text = |text: &str| Value::from(text).to_string();
    let mut out = "---\n".to_owned();
    let mut line = |key: &str, value: &str| out += &format!("{key}: {value}\n");
    if let Some(license) = &facts.license {
        line("license", &text(license));
    }
    if let Some(base) = facts.base.as_ref().filter(|_| facts.has_base_repo) {
        line("base_model", &text(base));
        match facts.kind {
            ModelKind::Adapter => line("base_model_relation", "adapter"),
            ModelKind::Gguf if facts.is_quantized => line("base_model_relation", "quantized"),
            _ => {}
        }
    }
    match facts.kind {
        ModelKind::Adapter if !facts.is_gguf => line("library_name", "peft"),
        ModelKind::Gguf if facts.is_embedding => line("pipeline_tag", "feature-extraction"),
        ModelKind::Gguf => line("pipeline_tag", "text-generation"),
        _ => {}
    }
    line("tags", "");
    let tags = [(facts.is_gguf, "gguf"), (facts.kind == ModelKind::Adapter, "lora"), (true, "ruvllm")];
    for (_, tag) in tags.iter().filter(|(is_so, _)| *is_so) {
        let _ = writeln!(out, "- {tag}");
    }
    out.replace("tags: \n", "tags:\n") + "---\n"
}

fn about(facts: &ModelFacts) -> &'static str {
    match facts.kind {
        ModelKind::Gguf if facts.is_quantized => "A quantised model in GGUF.",
        ModelKind::Gguf => "A model in GGUF.",
        ModelKind::Adapter => "An adapter (LoRA) for the base below.",
        ModelKind::Safetensors => "A model as safetensors.",
    }
}

fn usage(repo: &str, facts: &ModelFacts, files: &[PublishedFile]) -> String {
    let first = files.iter().find(|file| file.name.ends_with(".gguf")).map(|file| file.name.as_str());
    let command = match (facts.kind, first) {
        (ModelKind::Gguf, Some(file)) if facts.is_embedding => {
            format!("ruvllm embed --model 'hf:{repo}/{file}' --text \"…\"")
        }
        (ModelKind::Gguf, Some(file)) => format!("ruvllm run --model 'hf:{repo}/{file}' --prompt \"…\""),
        _ => return String::new(),
    };
    format!("\n## Use\n\n```sh\n{command}\n```\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> PublishedFile {
        PublishedFile { name: name.to_owned(), path: None, text: None, n_bytes: 1_500_000, sha256: String::new() }
    }

    fn facts() -> ModelFacts {
        ModelFacts {
            is_gguf: true,
            is_quantized: true,
            name: Some("A <b> model".to_owned()),
            license: Some("apache-2.0\"\nx: y".to_owned()),
            base: Some("o/base".to_owned()),
            has_base_repo: true,
            lines: vec![("Parameters", "1.0 M".to_owned())],
            quantizations: vec![("m.gguf".to_owned(), "Q4_K_M".to_owned())],
            ..ModelFacts::default()
        }
    }

    #[test]
    fn a_card_says_what_is_known() {
        let table = serde_json::json!({ "ppl": 12.5 });
        let card = CardText::new("o/r", &facts(), &[file("m.gguf")], Some(&table)).expect("a card").text(&[]);
        for piece in [
            "---\nlicense: \"apache-2.0\\\"\\nx: y\"\nbase_model: \"o/base\"\nbase_model_relation: quantized\n",
            "tags:\n- gguf\n- ruvllm\n---\n",
            "# A &lt;b> model\n",
            "| Parameters | 1.0 M |\n",
            "<!-- ruvllm:files -->\n| file | quantisation | size |\n|---|---|---|\n| `m.gguf` | Q4_K_M | 1.5 MB |\n<!-- /ruvllm:files -->\n",
            "## Measured\n\n| ppl |\n| --- |\n| 12.5 |\n",
            "ruvllm run --model 'hf:o/r/m.gguf'",
        ] {
            assert!(card.contains(piece), "{piece}\nin\n{card}");
        }
    }

    #[test]
    fn files_of_an_older_card_stay_on_it() {
        let older = CardText::new("o/r", &facts(), &[file("a.gguf"), file("m.gguf")], None).expect("a card").text(&[]);
        let kept = rows(&older).expect("a made card");
        assert_eq!(kept.len(), 2);
        let card = CardText::new("o/r", &facts(), &[file("m.gguf")], None).expect("a card").text(&kept);
        assert_eq!(rows(&card).expect("a made card").len(), 2);
        assert_eq!(rows("# My own card\n"), None);
    }
}
