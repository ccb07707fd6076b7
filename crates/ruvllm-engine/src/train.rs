//! A loaded model as the training of adapters needs it: its weights in f32, and its tokens for texts and conversations.

use std::sync::Arc;

use ruvllm_backend::BackendError;
use ruvllm_lora::train::{Encoder, ReadProgress, TrainModel};
use ruvllm_lora::{LoraError, LoraErrorKind};
use ruvllm_text::template::ChatInput;
use ruvllm_text::tokenizer::EncodeOptions;
use ruvllm_text::{ModelText, TextError};
use serde_json::Value;

use crate::EngineError;
use crate::engine::Engine;

impl Engine {
    /// Reads the model's weights in f32 for training, where the products of factors are multiplied with `scale`. The engine
    /// itself stays as it is.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): the model has experts, convolutions or attention sinks; or a weight cannot be read.
    pub fn train_model(&self, scale: f32, progress: &mut dyn FnMut(ReadProgress)) -> Result<TrainModel, EngineError> {
        let (loader, model) = (self.adapter_loader()?, self.runner.model());
        let targets = Arc::clone(loader.targets());
        let spec = model.model_spec().ok_or_else(|| {
            let backend = model.info().device.backend;
            BackendError::unsupported(format!("backend {backend} trains no adapters; use native"))
        })?;
        let read = TrainModel::read(spec.clone(), targets, loader.base_weights(), scale, progress);
        read.map_err(|error| match error.kind() {
            // The model is of a kind that is not trained; no adapter is at fault.
            LoraErrorKind::Unsupported => BackendError::unsupported(error.to_string()).into(),
            _ => error.into(),
        })
    }
}

/// Makes an error of a text that the model cannot read.
fn refused(error: TextError) -> LoraError {
    LoraError::new(LoraErrorKind::Invalid, error.to_string())
}

/// Makes tokens of texts and conversations for training.
#[derive(Clone, Debug)]
pub struct TextEncoder(
    /// The model's tokenizer and template.
    pub ModelText,
);

impl Encoder for TextEncoder {
    fn text(&self, text: &str) -> Result<Vec<u32>, LoraError> {
        let options = EncodeOptions { add_special: true, parse_special: false };
        self.0.tokenizer().encode(text, options).map_err(refused)
    }

    fn chat(&self, messages: &[Value], open: bool) -> Result<Vec<u32>, LoraError> {
        let input = ChatInput { messages: messages.to_vec(), add_generation_prompt: open, ..ChatInput::default() };
        self.0.encode_chat(&input).map_err(refused)
    }

    fn end(&self) -> Option<u32> {
        self.0.tokenizer().eos()
    }

    fn is_end(&self, token: u32) -> bool {
        self.0.tokenizer().is_end_of_generation(token)
    }
}
