//! Tables of what quantisation costs, each figure with the page that has it.

use ruvllm_convert::Recipe;

/// Share of the read bandwidth that decode reaches, and where that stands: Llama 8B in Q4_K_M and Q6_K.
pub const READ_SHARE: f64 = 0.82;
/// The page of [`READ_SHARE`].
pub const READ_SHARE_PAGE: &str = "docs/src/benchmarks.md";
/// The page of [`QUALITY`].
pub const QUALITY_PAGE: &str = "docs/lab/quantisation.md";

/// Recipes that are weighed, from large files to small ones, with the change of perplexity in per cent. The source that was
/// measured is in Q4_K_M, so what that costs is not known.
pub const QUALITY: [(Recipe, Option<f64>); 7] = [
    (Recipe::Q8_0, Some(0.07)),
    (Recipe::Q6_K, Some(0.12)),
    (Recipe::Q5_K_M, Some(1.13)),
    (Recipe::Q4_K_M, None),
    (Recipe::IQ4_XS, Some(8.24)),
    (Recipe::Q3_K_M, Some(6.90)),
    (Recipe::Q2_K, Some(13.82)),
];
