//! The `ruvllm` command as scripts and people see it: help, wrong inputs, sources, and answers of real models.

mod answers;
mod common;
mod help;
mod sources;
mod wrong;
