//! Prefetch plan of the keys and values that a step reads first.

use super::{BLOCK_TOKENS, KvLayer, Options, Segment};
use crate::prefetch::PrefetchPlan;

/// Returns the plan of what a step reads first of a layer's cache, up to some `n_bytes`: of each segment the block that
/// its first row is written to, then the others that this row sees, from the first on.
///
/// # Panics
/// If a segment lacks blocks, or the layer does.
pub fn prefetch_plan(options: &Options<'_>, kv: KvLayer<'_>, segments: &[Segment<'_>], n_bytes: usize) -> PrefetchPlan {
    let shape = options.shape();
    let (mut plan, mut left) = (PrefetchPlan::default(), n_bytes);
    let mut add = |block| {
        let part = kv.part(shape, block);
        for bytes in [part.k, part.v] {
            let addresses = bytes.as_ptr_range();
            plan.push(addresses.start as usize..addresses.end as usize);
        }
        left = left.saturating_sub(part.k.len() + part.v.len());
        left > 0
    };
    for segment in segments.iter().filter(|segment| segment.n_rows > 0) {
        let seen = options.visible(segment.pos, segment.n_kv);
        let written = segment.pos / BLOCK_TOKENS;
        let others = seen.start / BLOCK_TOKENS..seen.end.div_ceil(BLOCK_TOKENS);
        let blocks = std::iter::once(written).chain(others.filter(|&block| block != written));
        if !blocks.map(|block| segment.blocks[block]).all(&mut add) {
            break;
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::super::{KvBlock, KvFormat, KvShape, KvUnits};
    use super::*;

    /// Blocks of the plan, by their numbers, in order.
    fn planned(window: Option<usize>, segments: &[(usize, usize, &[usize])], n_blocks: usize) -> Vec<usize> {
        let shape = KvShape { n_kv_heads: 2, k_dim: 64, v_dim: 64 };
        let n_bytes = KvFormat::F16.k_bytes(shape) + KvFormat::F16.v_bytes(shape);
        let bytes = vec![0; 10 * 2 * n_bytes];
        // A layer's part is half of a unit, so no two of them are one range.
        let units = KvUnits { bytes: &bytes, stride: 2 * n_bytes, k_at: 0, v_at: KvFormat::F16.k_bytes(shape) };
        let kv = KvLayer::default().with(KvFormat::F16, units);
        let tables: Vec<Vec<KvBlock>> = segments
            .iter()
            .map(|(_, _, blocks)| blocks.iter().map(|&i| KvBlock::new(KvFormat::F16, i)).collect())
            .collect();
        let segments: Vec<Segment<'_>> = segments
            .iter()
            .zip(&tables)
            .map(|(&(n_rows, pos, _), blocks)| Segment { first_row: 0, n_rows, pos, n_kv: pos + n_rows, blocks })
            .collect();
        let options = Options { window, ..Options::causal(4, shape) };
        let plan = prefetch_plan(&options, kv, &segments, n_blocks * n_bytes);
        let start = bytes.as_ptr() as usize;
        plan.ranges()
            .iter()
            .map(|range| (range.len(), (range.start - start) / (2 * n_bytes)))
            .map(|(len, block)| {
                assert_eq!(len, n_bytes);
                block
            })
            .collect()
    }

    #[test]
    fn the_written_block_comes_first_and_then_what_its_row_sees() {
        assert_eq!(planned(None, &[(1, 40, &[7, 5, 9])], 10), [9, 7, 5]);
        assert_eq!(planned(Some(20), &[(1, 40, &[7, 5, 9])], 10), [9, 5]);
        assert_eq!(planned(None, &[(1, 3, &[7]), (0, 5, &[2]), (2, 16, &[1, 3])], 10), [7, 3, 1]);
    }

    #[test]
    fn no_more_is_planned_than_there_is_room_for() {
        assert_eq!(planned(None, &[(1, 60, &[7, 5, 9, 1]), (1, 0, &[2])], 2), [1, 7]);
        assert_eq!(planned(None, &[(1, 60, &[7, 5, 9, 1]), (1, 0, &[2])], 5), [1, 7, 5, 9, 2]);
    }
}
