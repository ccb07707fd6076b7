//! Quantised and converted files against those of llama.cpp, and what is refused.

mod budget;
mod convert;
mod equal;
mod folder;
mod hostile;
mod models;
mod recipes;
mod refused;
