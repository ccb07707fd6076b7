//! Integration tests of learning over an engine: golden models and real models.

mod learning;
mod optimise;
mod rough;
