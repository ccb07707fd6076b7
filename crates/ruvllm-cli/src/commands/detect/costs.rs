//! The table of what quantisation costs, each figure with the page that has it.

use ruvllm_convert::Recipe;

/// Share of the read bandwidth that decode reaches, and where that stands: Llama 8B in Q4_K_M and Q6_K.
pub const READ_SHARE: f64 = 0.82;
/// The page of [`READ_SHARE`].
pub const READ_SHARE_PAGE: &str = "docs/src/benchmarks.md";
/// The page of changes of perplexity.
pub const PERPLEXITY_PAGE: &str = "docs/lab/quantisation.md";
/// The page of divergences.
pub const KL_PAGE: &str = "adr/0037-recipes-of-a-size.md";

/// Costs of a recipe in quality, where they were measured.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub recipe: Recipe,
    /// Change of perplexity in per cent: Qwen2.5-Coder 0.5B, from Q4_K_M. What that itself costs is not known.
    pub perplexity_percent: Option<f64>,
    /// Mean divergence from the source in nats, with an importance matrix: SmolLM2 135M.
    pub mean_kl: Option<f64>,
    /// Mean divergence of a file of that size, whose types `--budget` chose by measured sensitivities.
    pub budget_kl: Option<f64>,
}

/// Recipes that are weighed, from large files to small ones.
pub const COSTS: [Cost; 7] = [
    cost(Recipe::Q8_0, Some(0.07), None, None),
    cost(Recipe::Q6_K, Some(0.12), None, None),
    cost(Recipe::Q5_K_M, Some(1.13), Some(0.0204), Some(0.0191)),
    cost(Recipe::Q4_K_M, None, Some(0.0501), Some(0.0300)),
    cost(Recipe::IQ4_XS, Some(8.24), None, None),
    cost(Recipe::Q3_K_M, Some(6.90), Some(0.1386), Some(0.0585)),
    cost(Recipe::Q2_K, Some(13.82), None, None),
];

const fn cost(recipe: Recipe, perplexity_percent: Option<f64>, mean_kl: Option<f64>, budget_kl: Option<f64>) -> Cost {
    Cost { recipe, perplexity_percent, mean_kl, budget_kl }
}
