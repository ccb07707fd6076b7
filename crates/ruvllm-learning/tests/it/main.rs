//! Integration tests of learning over an engine: golden models and real models.

mod approx_head;
mod autotune;
mod draft_history;
mod learning;
