//! Many patterns that say the same become one.

use std::collections::BTreeMap;

use super::{Pattern, ReasoningBank, Verdict, kmeans, sorted_ids};
use crate::error::SonaError;

/// Options of distilling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distill {
    /// Clusters of each verdict, at most.
    pub n_clusters: usize,
    /// Only patterns whose cosine with the middle of their cluster is at least this become one.
    pub similarity_min: f32,
    /// Where the first clusters are drawn from.
    pub seed: u64,
    /// Patterns of each verdict that are looked at: the next ones behind those of the last time, in the order of their ids. Time grows
    /// with this and with the clusters: 16,384 in 256 of width 384 take some seconds.
    pub n_patterns_max: usize,
}

impl Default for Distill {
    /// 256 clusters of up to 16,384 patterns, those within 0.9 of the middle.
    fn default() -> Distill {
        Distill { n_clusters: 256, similarity_min: 0.9, seed: 1, n_patterns_max: 16_384 }
    }
}

/// Outcome of the distilling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distilled {
    /// Patterns that went.
    pub n_removed: usize,
    /// Patterns that came in their place.
    pub n_added: usize,
}

/// Rounds of k-means.
const N_ROUNDS: usize = 20;

impl ReasoningBank {
    /// Clusters the patterns of each verdict and puts one in the place of those that lie close together: with the steps of
    /// the best of them, their weighted mean as embedding and quality, and all their uses. The same bank and seed give the
    /// same result, in one transaction.
    ///
    /// # Errors
    /// If the store cannot be read or written.
    pub fn distill(&self, how: &Distill) -> Result<Distilled, SonaError> {
        let _writing = self.writing();
        let mut by_verdict: BTreeMap<u8, Vec<u64>> = BTreeMap::new();
        {
            let state = self.read();
            for id in sorted_ids(&state.facts) {
                by_verdict.entry(state.facts[&id].verdict as u8).or_default().push(id);
            }
        }
        let (mut removed, mut added) = (vec![], vec![]);
        for (&verdict, ids) in &mut by_verdict {
            let mut state = self.write();
            let looked_at = &mut state.looked_at[usize::from(verdict)];
            ids.sort_unstable_by_key(|id| (id <= looked_at, *id));
            ids.truncate(how.n_patterns_max);
            *looked_at = ids.last().copied().unwrap_or(0);
        }
        for ids in by_verdict.values() {
            for members in self.groups(ids, how) {
                let patterns = members.iter().map(|id| Ok(self.get(*id)?.expect("it is in the bank")));
                added.push(distilled(patterns.collect::<Result<Vec<Pattern>, SonaError>>()?));
                removed.extend(members);
            }
        }
        self.replace(&removed, &added)?;
        Ok(Distilled { n_removed: removed.len(), n_added: added.len() })
    }

    /// Groups of two or more that lie close together.
    fn groups(&self, ids: &[u64], how: &Distill) -> Vec<Vec<u64>> {
        let dim = self.config.dim;
        let rows: Vec<f32> = {
            let state = self.read();
            ids.iter().flat_map(|id| state.index.vector(*id).expect("every pattern is in the index")).copied().collect()
        };
        let clusters = kmeans(&rows, dim, how.n_clusters, how.seed, N_ROUNDS);
        let mut groups = vec![vec![]; clusters.centroids.len() / dim];
        for ((id, row), cluster) in ids.iter().zip(rows.chunks_exact(dim)).zip(&clusters.assigned) {
            let centroid = &clusters.centroids[*cluster as usize * dim..][..dim];
            let length = centroid.iter().map(|value| value * value).sum::<f32>().sqrt();
            let product: f32 = row.iter().zip(centroid).map(|(a, b)| a * b).sum();
            if product >= how.similarity_min * length {
                groups[*cluster as usize].push(*id);
            }
        }
        groups.retain(|group| group.len() > 1);
        groups
    }
}

/// One pattern of many of one verdict.
///
/// # Panics
/// If there are none.
fn distilled(members: Vec<Pattern>) -> Pattern {
    let weight = |pattern: &Pattern| f64::from(pattern.n_members.max(1));
    let total: f64 = members.iter().map(weight).sum();
    let quality = members.iter().map(|pattern| weight(pattern) * f64::from(pattern.quality)).sum::<f64>() / total;
    let mut embedding = vec![0f64; members[0].embedding.len()];
    for pattern in &members {
        let length = pattern.embedding.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
        for (sum, value) in embedding.iter_mut().zip(&pattern.embedding) {
            *sum += weight(pattern) * f64::from(*value) / length;
        }
    }
    let sum = |of: fn(&Pattern) -> u32| members.iter().fold(0u32, |sum, pattern| sum.saturating_add(of(pattern)));
    let (n_uses, n_members) = (sum(|pattern| pattern.n_uses), sum(|pattern| pattern.n_members.max(1)));
    let created_ms = members.iter().map(|pattern| pattern.created_ms).max().unwrap_or(0);
    let mut items: Vec<u64> = members.iter().flat_map(|pattern| &pattern.items).copied().collect();
    items.sort_unstable();
    items.dedup();
    // Of a failure the clearest one warns best.
    let clear = |pattern: &Pattern| match pattern.verdict {
        Verdict::Failure => 1.0 - pattern.quality,
        _ => pattern.quality,
    };
    let best = members.into_iter().reduce(|best, other| if clear(&other) > clear(&best) { other } else { best });
    Pattern {
        embedding: embedding.into_iter().map(|value| value as f32).collect(),
        quality: (quality as f32).clamp(0.0, 1.0),
        created_ms,
        n_uses,
        n_members,
        items,
        ..best.expect("there is a member")
    }
}
