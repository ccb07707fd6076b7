//! Text in and out of a model: its tokenizer and chat template, shared by whoever needs them and never waiting for a
//! step of the model.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::guard::{Guard, Style, is_thinking};
use crate::template::{ChatInput, ChatTemplate};
use crate::thoughts;
use crate::tokenizer::{EncodeOptions, Tokenizer};
use crate::tools::ToolFormat;
use crate::{TextError, TextErrorKind};

/// Options of making tokens of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptOptions {
    /// Continue the text as it is, without the chat template.
    pub raw: bool,
    /// Read control tokens in the text as such.
    pub parse_special: bool,
}

/// Options of making tokens of a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChatOptions<'a> {
    /// Read control tokens in messages as such, not as text: a message can then open and end turns.
    pub parse_special: bool,
    /// The beginning of the assistant's answer, after what opens it.
    pub begun: &'a str,
}

/// A model's tokenizer and chat template. Clones share them; any thread may use one while the model computes.
#[derive(Clone, Debug)]
pub struct ModelText {
    /// The model's name, for messages.
    name: String,
    tokenizer: Arc<Tokenizer>,
    /// A template that does not compile is told when it is asked for.
    template: Option<Result<Arc<ChatTemplate>, (TextErrorKind, String)>>,
}

impl ModelText {
    /// Puts a tokenizer and a template together; `name` is the model's, for messages. A template that cannot be compiled is
    /// told when it is asked for.
    pub fn new(
        name: &str,
        tokenizer: &Arc<Tokenizer>,
        template: Result<Option<&Arc<ChatTemplate>>, TextError>,
    ) -> ModelText {
        let template = template.map(|template| template.map(Arc::clone)).transpose();
        let template = template.map(|template| template.map_err(|error| (error.kind(), error.to_string())));
        ModelText { name: name.to_owned(), tokenizer: Arc::clone(tokenizer), template }
    }

    /// Returns the tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Returns the chat template, if the model has one.
    ///
    /// # Errors
    /// The template is there and cannot be compiled.
    pub fn template(&self) -> Result<Option<&ChatTemplate>, TextError> {
        let template = self.template.as_ref().map(Result::as_ref).transpose();
        let template = template.map_err(|(kind, line)| TextError::new(*kind, line.clone()))?;
        Ok(template.map(|template| &**template))
    }

    /// Returns the tokens of a prompt: as it is with `raw`, control tokens and all, or as one user message through the chat
    /// template, in which control tokens are text (a model without one reads it as it is, as text too). Nothing ends the prompt.
    ///
    /// # Errors
    /// A template that refuses the message.
    pub fn encode_prompt(&self, text: &str, raw: bool) -> Result<Vec<u32>, TextError> {
        self.encode_prompt_as(text, PromptOptions { raw, parse_special: raw })
    }

    /// Returns the tokens of a prompt with options.
    ///
    /// # Errors
    /// A template that refuses the message.
    pub fn encode_prompt_as(&self, text: &str, options: PromptOptions) -> Result<Vec<u32>, TextError> {
        let PromptOptions { raw, parse_special } = options;
        if raw || self.template()?.is_none() {
            return self.tokenizer.encode_prompt(text, parse_special);
        }
        let messages = vec![json!({ "role": "user", "content": text })];
        let input = ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() };
        self.encode_chat_as(&input, ChatOptions { parse_special, ..ChatOptions::default() })
    }

    /// Returns the tokens of a pair of texts as encoders read it, and how many of them are the first one's.
    ///
    /// # Errors
    /// A text cannot be encoded.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<(Vec<u32>, usize), TextError> {
        let options = EncodeOptions { add_special: true, parse_special: false };
        let mut tokens = self.tokenizer.encode(first, options)?;
        let n_first = tokens.len();
        let second = self.tokenizer.encode(second, options)?;
        // What begins a text stands once.
        tokens.extend_from_slice(&second[usize::from(self.tokenizer.bos_to_add().is_some())..]);
        Ok((tokens, n_first))
    }

    /// Returns the text of a conversation, rendered by the chat template. Functions and calls that the template knows
    /// nothing of become text; see [`crate::tools`].
    ///
    /// # Errors
    /// No template, or one that refuses the messages.
    pub fn render_chat(&self, input: &ChatInput) -> Result<String, TextError> {
        let template = self.template()?.ok_or_else(|| {
            let line = format!(
                "model '{}' has no chat template; give it a plain prompt (run --raw, /v1/completions)",
                self.name
            );
            TextError::new(TextErrorKind::Prompt, line)
        })?;
        crate::tools::prompt::render(template, &thoughts::named_for(template, input))
    }

    /// Returns the tokens of a conversation, rendered by the chat template. Control tokens in messages are text.
    ///
    /// # Errors
    /// As [`ModelText::render_chat`].
    pub fn encode_chat(&self, input: &ChatInput) -> Result<Vec<u32>, TextError> {
        self.encode_chat_as(input, ChatOptions::default())
    }

    /// Returns the tokens of a conversation with options.
    ///
    /// # Errors
    /// As [`ModelText::render_chat`].
    pub fn encode_chat_as(&self, input: &ChatInput, options: ChatOptions<'_>) -> Result<Vec<u32>, TextError> {
        let text = self.render_chat(input)? + options.begun;
        if options.parse_special {
            return self.encode_rendered(&text);
        }
        let Some(guard) = Guard::of(&self.tokenizer, input, options.begun)? else { return self.encode_rendered(&text) };
        let render = |style| {
            let rendered = guard.marks.within(|| self.render_chat(&guard.marked(input, style)))?;
            Ok::<_, TextError>(rendered + &guard.text(options.begun, style, true))
        };
        let encode = |text: &str| self.tokenizer.encode_marked(text, true, Some(guard.marks));
        let strict = render(Style::All)?;
        if guard.marks.removed(&strict) == text {
            return encode(&strict);
        }
        // The template looks for such characters. Control tokens may not come from that.
        let turns = |text: &str| {
            let mut tokens = self.tokenizer.control_tokens_of(text);
            tokens.retain(|&token| !is_thinking(self.tokenizer.token_text(token).unwrap_or_default()));
            tokens
        };
        match render(Style::Spellings) {
            Ok(spellings) if turns(&spellings) == turns(&strict) => encode(&spellings),
            _ => encode(&strict),
        }
    }

    /// Returns the tokens of an answer as the chat template writes it, with the one that ends it; where there is no template,
    /// those of the text, with the one that ends texts.
    ///
    /// # Errors
    /// A template that refuses messages, or a text that cannot be encoded.
    pub fn encode_answer(&self, answer: &str) -> Result<Vec<u32>, TextError> {
        if self.template()?.is_some() {
            let question = json!({ "role": "user", "content": "?" });
            let asked = self.encode_chat(&chat(std::slice::from_ref(&question), true))?;
            let messages = [question, json!({ "role": "assistant", "content": answer })];
            let answered = self.encode_chat(&chat(&messages, false))?;
            // What a template writes behind the end is no answer.
            let rest = answered.strip_prefix(&asked[..]).unwrap_or_default();
            if let Some(end) = rest.iter().position(|&token| self.tokenizer.is_end_of_generation(token)) {
                return Ok(rest[..=end].to_vec());
            }
        }
        let mut tokens = self.tokenizer.encode(answer, EncodeOptions::default())?;
        tokens.extend(self.tokenizer.eos());
        Ok(tokens)
    }

    /// Returns the tokens of a text that a chat template wrote: control tokens are read as such, whoever wrote them.
    ///
    /// # Errors
    /// The text cannot be encoded.
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.tokenizer.encode_prompt(text, true)
    }

    /// Returns what the model writes to call a function, by its chat template.
    pub fn tool_format(&self) -> ToolFormat {
        self.template().ok().flatten().map_or(ToolFormat::Generic, ToolFormat::of)
    }

    /// Returns whether the chat template reads a variable of this name, `tools` for example: one that does not would
    /// drop it in silence.
    pub fn template_reads(&self, variable: &str) -> bool {
        self.template().is_ok_and(|template| template.is_some_and(|template| template.reads(variable)))
    }
}

/// Returns the conversation of these messages, to be answered if `add_generation_prompt`.
pub fn chat(messages: &[Value], add_generation_prompt: bool) -> ChatInput {
    ChatInput { messages: messages.to_vec(), add_generation_prompt, ..ChatInput::default() }
}
