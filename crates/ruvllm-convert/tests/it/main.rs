//! Quantised files against those of llama.cpp, and what is refused.

mod models;
mod recipes;
mod refused;
