//! Form that an answer is held to: that of the calls it may make, or one of its own. What compiles it is the caller's.

use ruvllm_engine::tools::ToolUse;
use ruvllm_engine::{GenerateRequest, Grammar, GrammarCompiler, GrammarError, GrammarSource};

use crate::error::ApiError;
use crate::fields::ValidBody;
use crate::response_format;
use crate::tools::in_tools;

/// Form of an answer, to be compiled.
#[derive(Clone, Debug)]
pub struct AnswerForm {
    /// The grammar's source.
    pub source: GrammarSource,
    of: Of,
}

#[derive(Clone, Debug)]
enum Of {
    Calls(ToolUse),
    Field(&'static str),
}

impl AnswerForm {
    /// Makes a request one whose answer may be calls, and returns its form. With another form that is asked for the answer is one or
    /// the other: a call, or an answer in the form.
    ///
    /// # Errors
    /// 400: a schema that arguments or answers cannot be held to, or a field that does not go with calls.
    pub fn of_calls(
        given: &ValidBody,
        tool_use: ToolUse,
        request: &mut GenerateRequest,
    ) -> Result<(ToolUse, AnswerForm), ApiError> {
        if request.ignore_eos {
            return Err(ApiError::bad(
                "ignore_eos",
                "'ignore_eos' does not go with 'tools': an answer ends behind its calls",
            ));
        }
        let tool_use = match response_format::source(given)? {
            Some((field, form)) => tool_use
                .with_form(form)
                .map_err(|error| ApiError { param: Some(field.to_owned()), ..ApiError::from(error) })?,
            None => tool_use,
        };
        if tool_use.is_forced() {
            // They look at what is said, and nothing is.
            request.stop.clear();
        }
        request.visible = tool_use.visible();
        let source = tool_use.source().map_err(|error| in_tools(error.into()))?;
        let of = Of::Calls(tool_use.clone());
        Ok((tool_use, AnswerForm { source, of }))
    }

    /// Returns the form that a request asks for.
    ///
    /// # Errors
    /// 400: it uses what is not supported, or other fields do not go with it.
    pub fn of_field(given: &ValidBody, request: &GenerateRequest) -> Result<Option<AnswerForm>, ApiError> {
        let Some((field, source)) = response_format::source(given)? else { return Ok(None) };
        if request.ignore_eos {
            let line = format!("'ignore_eos' does not go with '{field}': the answer ends where its form is complete");
            return Err(ApiError::bad("ignore_eos", line));
        }
        Ok(Some(AnswerForm { source, of: Of::Field(field) }))
    }

    /// Compiles it.
    ///
    /// # Errors
    /// As [`GrammarCompiler::compile`].
    pub fn compile(&self, compiler: &GrammarCompiler) -> Result<Grammar, GrammarError> {
        match &self.of {
            Of::Calls(tool_use) => compiler.compile_calls(tool_use),
            Of::Field(_) => compiler.compile(&self.source),
        }
    }

    /// Adds which field an error of compiling is about.
    pub fn named(&self, error: ApiError) -> ApiError {
        match self.of {
            Of::Calls(_) => in_tools(error),
            Of::Field(field) => ApiError { param: Some(field.to_owned()), ..error },
        }
    }
}

/// Returns the grammar of a request's answer: what its stop texts cut off is missing in the form.
pub fn for_stops_of(request: &GenerateRequest, grammar: Grammar) -> Grammar {
    if request.stop.is_empty() { grammar } else { grammar.with_stops() }
}
