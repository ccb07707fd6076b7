//! Tables of what quantisation costs, each figure with the page that has it.

use ruvllm_convert::Recipe;

/// Share of the read bandwidth that decode reaches, and where that stands: Llama 8B in Q4_K_M and Q6_K.
pub const READ_SHARE: f64 = 0.82;
/// The page of [`READ_SHARE`].
pub const READ_SHARE_PAGE: &str = "docs/src/benchmarks.md";
/// The page of [`QUALITY`].
pub const QUALITY_PAGE: &str = "docs/lab/quantisation.md";

/// Recipes that are weighed, from large files to small ones, with the change of perplexity in per cent.
pub const QUALITY: [(Recipe, Option<f64>); 7] = [
    (Recipe::Q8_0, None),
    (Recipe::Q6_K, None),
    (Recipe::Q5_K_M, None),
    (Recipe::Q4_K_M, None),
    (Recipe::IQ4_XS, None),
    (Recipe::Q3_K_M, None),
    (Recipe::Q2_K, None),
];
