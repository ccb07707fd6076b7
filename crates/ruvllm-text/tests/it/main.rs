//! Integration tests: tokenizers and templates of golden and real models.

mod template;
mod tokenizer;
