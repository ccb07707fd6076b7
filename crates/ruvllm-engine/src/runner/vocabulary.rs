//! Tokenizer and chat template of a model, from its file.

use std::sync::{Arc, OnceLock};

use ruvllm_gguf::GgufFile;
use ruvllm_text::template::ChatTemplate;
use ruvllm_text::tokenizer::Tokenizer;
use ruvllm_text::{TextError, TextErrorKind};

use crate::EngineError;

/// Something that could be made, or the kind and the line of why not.
type Made<T> = Result<Arc<T>, (TextErrorKind, String)>;

/// Tokenizer and chat template of a model. The tokenizer is built when it is first asked for: computing logits needs none.
pub struct Vocabulary {
    file: Arc<GgufFile>,
    tokenizer: OnceLock<Made<Tokenizer>>,
    /// A template that does not compile is told when it is asked for: raw prompts need none.
    template: Option<Made<ChatTemplate>>,
}

impl Vocabulary {
    /// Takes both from the metadata of a GGUF file.
    ///
    /// # Errors
    /// The template's entries are of a wrong type.
    pub fn of_gguf(file: &Arc<GgufFile>) -> Result<Vocabulary, EngineError> {
        let mut template = None;
        if let Some(source) = file.metadata().str("tokenizer.chat_template")? {
            let (bos, eos) = special_texts(file)?;
            let compiled = ChatTemplate::new(source, &bos, &eos);
            template = Some(compiled.map(Arc::new).map_err(|error| (error.kind(), error.to_string())));
        }
        Ok(Vocabulary { file: Arc::clone(file), tokenizer: OnceLock::new(), template })
    }

    /// Takes another chat template than the file's.
    ///
    /// # Errors
    /// It cannot be compiled.
    pub fn set_template(&mut self, source: &str) -> Result<(), EngineError> {
        let (bos, eos) = special_texts(&self.file)?;
        self.template = Some(Ok(Arc::new(ChatTemplate::new(source, &bos, &eos)?)));
        Ok(())
    }

    /// Returns the GGUF file that they are from.
    pub fn file(&self) -> &Arc<GgufFile> {
        &self.file
    }

    /// Returns the tokenizer.
    ///
    /// # Errors
    /// The file has none, or one of a kind that is not supported, or it was cut short meanwhile.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>, EngineError> {
        let build = || match Tokenizer::from_metadata(self.file.metadata()) {
            Ok(tokenizer) => Ok(Arc::new(tokenizer)),
            Err(error) => Err((error.kind(), error.to_string())),
        };
        let built = self.tokenizer.get_or_init(build).as_ref();
        self.file.check()?;
        Ok(built.map_err(|(kind, line)| TextError::new(*kind, line.clone()))?)
    }

    /// Returns the chat template, if the file has one.
    ///
    /// # Errors
    /// The template is there and cannot be compiled.
    pub fn chat_template(&self) -> Result<Option<&Arc<ChatTemplate>>, TextError> {
        let template = self.template.as_ref().map(Result::as_ref).transpose();
        template.map_err(|(kind, line)| TextError::new(*kind, line.clone()))
    }
}

/// Returns the texts of the BOS and EOS tokens for the chat template; empty where the file has none.
fn special_texts(file: &GgufFile) -> Result<(String, String), EngineError> {
    let metadata = file.metadata();
    let tokens = metadata.strings("tokenizer.ggml.tokens")?;
    let text = |key: &str| -> Result<String, EngineError> {
        let id = metadata.u32(key)?;
        let text = id.and_then(|id| tokens.as_ref().and_then(|tokens| tokens.get(id as usize)));
        Ok(text.map(str::to_owned).unwrap_or_default())
    };
    Ok((text("tokenizer.ggml.bos_token_id")?, text("tokenizer.ggml.eos_token_id")?))
}
