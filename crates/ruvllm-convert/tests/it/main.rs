//! Quantised and converted files against those of llama.cpp, and what is refused.

mod budget;
mod calibrate;
mod convert;
mod described;
mod equal;
mod folder;
mod hostile;
mod models;
mod recipes;
mod refused;
mod rope;
mod space;
