//! Sources of grammars: their bounds, and how `llguidance` reads them.

use llguidance::api::TopLevelGrammar;
use ruvllm_text::GrammarSource;
use serde_json::{Value, json};

use crate::error::{NO_TEXT, refused};
use crate::judge::Judge;
use crate::{GrammarError, gbnf, nested, schema, size};

/// The longest schema, or grammar of rules, in bytes of its text.
const RULES_BYTES_MAX: usize = 512 << 10;
/// The longest regular expression or list of choices: all of it is text that is asked for.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// The deepest nesting of brackets in it.
pub(crate) const DEPTH_MAX: usize = 128;

/// Checks the size of a source.
pub(crate) fn check_size(source: &GrammarSource) -> Result<(), GrammarError> {
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
pub(crate) fn read(source: &GrammarSource) -> Result<(TopLevelGrammar, Option<Judge>), GrammarError> {
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

fn json_schema(schema: &Value) -> Result<(TopLevelGrammar, Option<Judge>), GrammarError> {
    let compiled = schema::compile(schema)?.ok_or_else(|| refused(NO_TEXT))?;
    let judge = Judge::new(schema, &compiled.looked_at)?;
    Ok((TopLevelGrammar::from_lark(compiled.lark), judge))
}

fn choice(texts: &[String]) -> Result<TopLevelGrammar, GrammarError> {
    if texts.is_empty() || texts.iter().any(String::is_empty) {
        return Err(refused("a choice needs texts, none of them empty"));
    }
    let texts: Vec<String> = texts.iter().map(|text| Value::from(text.as_str()).to_string()).collect();
    Ok(TopLevelGrammar::from_lark(format!("start: CHOICE\nCHOICE: {}\n", texts.join(" | "))))
}
