//! Grammars of answers that may call functions.

use ruvllm_text::tools::ToolUse;
use web_time::{Duration, Instant};

use crate::{Grammar, GrammarCompiler, GrammarError};

/// Time that the search for schemas that arguments cannot be held to may take.
const SEARCH_MAX: Duration = Duration::from_secs(6);

impl GrammarCompiler {
    /// Compiles the grammar of an answer to a request with functions: calls whose arguments are valid by their schemas, or
    /// before and instead of them any text where the model is free to call. A schema that is not strict and cannot be held to
    /// is any object then.
    ///
    /// # Errors
    /// [`crate::GrammarErrorKind::Invalid`]: a schema that arguments cannot be held to, named; otherwise as
    /// [`GrammarCompiler::compile`].
    pub fn compile_calls(&self, tool_use: &ToolUse) -> Result<Grammar, GrammarError> {
        let compile = |tool_use: &ToolUse| self.compile(&tool_use.source()?);
        let mut result = compile(tool_use);
        if result.is_err() && !tool_use.is_forced() {
            // Which schema it is shows alone.
            let start = Instant::now();
            let mut loosened = tool_use.clone();
            for i in (0..tool_use.tools().len()).filter(|&i| !tool_use.tools()[i].is_strict) {
                if start.elapsed() > SEARCH_MAX {
                    return result;
                }
                if compile(&tool_use.with_only(i)).is_err() {
                    loosened = loosened.with_any_arguments(i);
                }
            }
            result = compile(&loosened);
        }
        let grammar = result?;
        Ok(if tool_use.ends_by_grammar() { grammar } else { grammar.with_stops() })
    }
}

#[cfg(test)]
mod tests;
