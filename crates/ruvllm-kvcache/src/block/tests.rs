//! Laws of blocks, units and pages after any sequence of operations.

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

const PAGE: usize = 100;

/// Units shorter and longer than a page, of one and of four blocks.
fn sizes() -> [SpaceSize; 3] {
    [(KvFormat::F16, 70, 40), (KvFormat::Q8, 36, 70), (KvFormat::Q4, 130, 20)]
        .map(|(format, stride, n_units)| SpaceSize { format, stride, n_units })
}

/// Checks counts and pages against the blocks that are owned.
fn check(allocator: &Allocator, owned: &[KvBlock], n_pages_max: usize) {
    let stats = allocator.stats();
    let blocks: HashSet<KvBlock> = owned.iter().copied().collect();
    assert_eq!((stats.in_use, stats.references), (blocks.len(), owned.len()));
    assert_eq!(stats.free + stats.in_use, stats.total);
    let state = allocator.lock();
    let mut n_pages = 0;
    for space in state.spaces.iter().filter(|space| space.stride > 0) {
        let used: HashSet<usize> = blocks.iter().filter(|b| b.format() == space.format).map(|b| b.unit()).collect();
        let n_units = space.counts.len() / space.format.blocks_per_unit();
        assert!((0..n_units).all(|unit| space.free.contains(unit) != used.contains(&unit)));
        let users = |page| used.iter().filter(|&&unit| space.pages_of(unit).contains(&page)).count();
        assert!((0..space.users.len()).all(|page| space.users[page] as usize == users(page)));
        assert!((0..space.users.len()).all(|page| users(page) == 0 || space.committed.contains(page)));
        let is_ready =
            |unit| space.free.contains(unit) && space.pages_of(unit).all(|page| space.committed.contains(page));
        assert!((0..n_units).all(|unit| space.ready.contains(unit) == is_ready(unit)));
        let idle = (0..space.users.len()).filter(|&page| users(page) == 0 && space.committed.contains(page));
        assert_eq!(space.n_idle, idle.count());
        assert!((0..n_units).all(|unit| space.pages_of(unit).all(|page| space.units_of(page).contains(&unit))));
        n_pages += space.committed.len();
    }
    assert_eq!(n_pages, state.n_pages);
    assert_eq!(state.n_pages_max + state.n_lent, n_pages_max);
    assert!(n_pages + state.n_lent <= n_pages_max);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Owners, free units and pages stay in step, no more pages are committed and lent than allowed, and as many blocks can
    /// be taken as are told to be free.
    #[test]
    fn blocks_units_and_pages_stay_in_step(
        n_pages_max in 1usize..40,
        ops in proptest::collection::vec((0usize..9, 0usize..100), 1..80),
    ) {
        let allocator = Allocator::new(&sizes(), PAGE, n_pages_max);
        let mut owned: Vec<KvBlock> = Vec::new();
        for (op, n) in ops {
            match op {
                0..3 => {
                    let before = owned.len();
                    let taken = allocator.take(sizes()[op].format, n % 5, &mut owned);
                    assert!(taken.is_ok() || owned.len() == before);
                }
                3 if !owned.is_empty() => {
                    let block = owned[n % owned.len()];
                    allocator.retain(&[block]);
                    owned.push(block);
                }
                4 if !owned.is_empty() => {
                    let block = owned.swap_remove(n % owned.len());
                    let is_last = !owned.contains(&block);
                    assert_eq!(allocator.release_last(block), is_last);
                    if !is_last {
                        allocator.release(&[block]);
                    }
                }
                5 => {
                    let (before, n) = (allocator.n_lent(), n % 4);
                    let is_lent = allocator.lend(n);
                    assert_eq!(allocator.n_lent(), before + if is_lent { n } else { 0 });
                }
                6 => allocator.take_back((n % 4).min(allocator.n_lent())),
                7 => {
                    let (mut touched, before) = (Vec::new(), allocator.n_pages());
                    while allocator.make_ready(n % 5, &mut |format, page| touched.push((format, page))) {}
                    assert_eq!(allocator.n_pages() - before, touched.len());
                    let state = allocator.lock();
                    let n_ready = state.spaces[KvFormat::F16 as usize].ready.len();
                    assert!(n_ready >= n % 5 || state.n_free() == n_ready, "there is room for more");
                }
                _ => {
                    let mut given = Vec::new();
                    let before = allocator.n_pages();
                    allocator.reclaim(n % 4, &mut |format, page| given.push((format, page)));
                    assert_eq!(before - allocator.n_pages(), given.len());
                }
            }
            check(&allocator, &owned, n_pages_max);
        }
        let n_free = allocator.stats().free;
        let mut blocks = Vec::new();
        prop_assert!(allocator.take(KvFormat::F16, n_free, &mut blocks).is_ok());
        let full = allocator.take(KvFormat::F16, 1, &mut blocks).expect_err("all are taken");
        let total = allocator.stats().total;
        prop_assert_eq!(full.kind(), KvErrorKind::PoolFull { needed: 1, free: 0, total });
        allocator.release(&blocks);
        allocator.release(&owned);
        allocator.reclaim(0, &mut |_, _| {});
        prop_assert_eq!((allocator.n_pages(), allocator.stats().in_use), (0, 0));
    }
}
