//! Integration tests of learning over an engine: golden models and real models.

mod autotune;
mod learning;
mod rough;
