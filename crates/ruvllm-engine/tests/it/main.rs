//! Integration tests of the engine: golden models and real models.

mod adapters;
mod batch_invariance;
mod cut_files;
mod draft;
mod embedding;
mod generation;
mod golden_logits;
mod grammar;
mod head_shortlist;
mod invariance;
mod kv_policies;
mod logits_hook;
mod malformed_files;
mod merge;
mod packed;
mod persist;
mod prefix_cache;
mod scheduler;
mod speculation;
mod teacher_forced;
mod thinking;
#[cfg(feature = "train")]
mod train;
