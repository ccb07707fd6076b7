//! Quantised files against those of llama.cpp, and what is refused.

mod budget;
mod models;
mod recipes;
mod refused;
