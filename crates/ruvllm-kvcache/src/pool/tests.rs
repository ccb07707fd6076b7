//! Laws of the pool after any sequence of operations.

use super::*;
use crate::policy::{Ageing, KvPolicy};
use half::f16;
use proptest::prelude::*;
use ruvllm_kernels::Isa;
use ruvllm_kernels::attention::KvShape;
use std::collections::HashMap;

const SHAPE: KvShape = KvShape { n_kv_heads: 2, k_dim: 3, v_dim: 5 };

fn pool(kv: KvFormat, n_blocks: usize) -> BlockPool {
    let layers = vec![SHAPE, KvShape { n_kv_heads: 1, k_dim: 4, v_dim: 2 }];
    BlockPool::new(&KvLayout { layers }, kv, n_blocks)
}

/// Reads what layer 0 keeps at a position of an exact block: K and V rows as they were written.
fn row(pool: &BlockPool, sequence: &Sequence, pos: usize) -> (Vec<f32>, Vec<f32>) {
    let block = sequence.blocks().nth(pos / BLOCK_TOKENS).expect("the position is reserved");
    let slot = pos % BLOCK_TOKENS;
    let layer = pool.layer(0);
    let units = layer.units(block.format());
    let at = |start: usize, i: usize| {
        let unit = &units.bytes[block.unit() * units.stride + start..];
        match block.format() {
            KvFormat::F16 => f16::from_le_bytes([unit[2 * i], unit[2 * i + 1]]).to_f32(),
            _ => f32::from_le_bytes([unit[4 * i], unit[4 * i + 1], unit[4 * i + 2], unit[4 * i + 3]]),
        }
    };
    let k = (0..6).map(|i| at(units.k_at, i * 16 + slot)).collect();
    let v = (0..10).map(|i| at(units.v_at, (i / 5 * 16 + slot) * 16 + i % 5));
    (k, v.collect())
}

/// Rows that tell which token wrote them; exact in f16.
fn rows(tags: &[u16]) -> (Vec<f32>, Vec<f32>) {
    let k = tags.iter().flat_map(|&tag| (0..6u8).map(move |i| f32::from(tag % 64) + f32::from(i) * 0.125));
    let v = tags.iter().flat_map(|&tag| (0..10u8).map(move |i| -f32::from(tag % 64) - f32::from(i) * 0.0625));
    (k.collect(), v.collect())
}

fn append(threads: &ThreadPool, pool: &mut BlockPool, sequence: &mut Sequence, tags: &[u16]) -> Result<(), KvError> {
    pool.reserve(sequence, tags.len())?;
    let (k, v) = rows(tags);
    pool.write_rows(threads, 0, &[sequence.segment(0, tags.len())], &k, &v);
    sequence.advance(tags.len());
    Ok(())
}

fn check_contents(pool: &BlockPool, sequence: &Sequence, tags: &[u16]) {
    assert_eq!(sequence.len(), tags.len());
    for (pos, &tag) in tags.iter().enumerate() {
        assert_eq!(row(pool, sequence, pos), rows(&[tag]), "position {pos}");
    }
}

/// The conservation law, and counts against the tables.
fn check_law(pool: &BlockPool, sequences: &[(Sequence, Vec<u16>)]) {
    let stats = pool.stats();
    assert_eq!(stats.free + stats.in_use, stats.total);
    let mut counts = HashMap::<KvBlock, u32>::new();
    for (sequence, _) in sequences {
        sequence.blocks().for_each(|block| *counts.entry(block).or_default() += 1);
        assert!(sequence.n_reserved() >= sequence.len());
    }
    assert_eq!(stats.in_use, counts.len());
    assert_eq!(stats.references, counts.values().sum::<u32>() as usize);
    assert!(counts.iter().all(|(block, &count)| pool.allocator.count(*block) == count));
}

#[derive(Clone, Debug)]
enum Op {
    New,
    Append(usize, usize),
    Reserve(usize, usize),
    Truncate(usize, usize),
    Fork(usize, usize),
    Drop(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        1 => Just(Op::New),
        6 => (0usize..8, 1usize..40).prop_map(|(i, n)| Op::Append(i, n)),
        1 => (0usize..8, 0usize..60).prop_map(|(i, n)| Op::Reserve(i, n)),
        2 => (0usize..8, 0usize..200).prop_map(|(i, n)| Op::Truncate(i, n)),
        3 => (0usize..8, 0usize..200).prop_map(|(i, n)| Op::Fork(i, n)),
        1 => (0usize..8).prop_map(Op::Drop),
    ];
    proptest::collection::vec(op, 1..60)
}

proptest! {
    /// Any sequence of operations keeps the law, and every sequence reads back what was written to it.
    #[test]
    fn operations_keep_blocks_and_contents(ops in ops(), f32 in any::<bool>()) {
        let threads = ThreadPool::new(1);
        let mut pool = pool(if f32 { KvFormat::F32 } else { KvFormat::F16 }, 24);
        let mut sequences: Vec<(Sequence, Vec<u16>)> = vec![(pool.sequence(150), vec![])];
        let mut tag = 0u16;
        for op in ops {
            let n = sequences.len();
            match op {
                Op::New => sequences.push((pool.sequence(150), vec![])),
                Op::Append(i, len) if n > 0 => {
                    let (sequence, tags) = &mut sequences[i % n];
                    let more: Vec<u16> = (0..len as u16).map(|i| tag.wrapping_add(i)).collect();
                    tag = tag.wrapping_add(len as u16);
                    let before = sequence.len();
                    match append(&threads, &mut pool, sequence, &more) {
                        Ok(()) => tags.extend(more),
                        Err(_) => assert_eq!(sequence.len(), before),
                    }
                }
                Op::Reserve(i, len) if n > 0 => {
                    let _ = pool.reserve(&mut sequences[i % n].0, len);
                }
                Op::Truncate(i, len) if n > 0 => {
                    let (sequence, tags) = &mut sequences[i % n];
                    tags.truncate(len);
                    sequence.truncate(tags.len());
                }
                Op::Fork(i, len) if n > 0 => {
                    let (sequence, tags) = &sequences[i % n];
                    let len = len.min(tags.len());
                    let fork = (pool.fork(sequence, len), tags[..len].to_vec());
                    sequences.push(fork);
                }
                Op::Drop(i) if n > 0 => drop(sequences.swap_remove(i % n)),
                _ => {}
            }
            check_law(&pool, &sequences);
            sequences.iter().for_each(|(sequence, tags)| check_contents(&pool, sequence, tags));
        }
        drop(sequences);
        prop_assert_eq!(pool.stats().free, 24);
    }
}

#[test]
fn errors_say_the_numbers() {
    let mut pool = pool(KvFormat::F16, 3);
    let (mut a, mut b) = (pool.sequence(40), pool.sequence(1000));
    let error = pool.reserve(&mut a, 41).expect_err("past the capacity");
    assert_eq!(error.kind(), KvErrorKind::SequenceFull { needed: 41, capacity: 40 });
    assert_eq!(error.to_string(), "context is full: 41 positions needed, 40 available; use a larger context");
    pool.reserve(&mut a, 17).expect("two blocks are free");
    let error = pool.reserve(&mut b, 33).expect_err("one is left");
    assert_eq!(error.kind(), KvErrorKind::PoolFull { needed: 3, free: 1, total: 3 });
    assert_eq!(
        error.to_string(),
        "kv cache is full: 3 more blocks of 16 positions needed, 1 of 3 free; \
         allow more memory for it (serve --kv-mib), shorten the prompt, or wait until others have ended"
    );
    assert_eq!((b.blocks().len(), pool.stats().free), (0, 1));
    assert!(pool.reserve(&mut b, usize::MAX).is_err());
}

#[test]
fn a_shared_partial_block_is_copied_when_room_is_there_and_refused_when_not() {
    let threads = ThreadPool::new(1);
    let mut pool = pool(KvFormat::F32, 2);
    let mut a = pool.sequence(20);
    append(&threads, &mut pool, &mut a, &[1, 2, 3]).expect("a block is free");
    let mut b = pool.fork(&a, 2);
    assert_eq!(pool.stats(), PoolStats { total: 2, free: 1, in_use: 1, references: 2 });
    append(&threads, &mut pool, &mut b, &[9]).expect("a block is free for the copy");
    check_contents(&pool, &a, &[1, 2, 3]);
    check_contents(&pool, &b, &[1, 2, 9]);
    assert_eq!(pool.stats().free, 0);
    let mut c = pool.fork(&a, 3);
    let error = append(&threads, &mut pool, &mut c, &[7]).expect_err("none is left for a copy");
    assert_eq!(error.kind(), KvErrorKind::PoolFull { needed: 1, free: 0, total: 2 });
    drop(a);
    append(&threads, &mut pool, &mut c, &[7]).expect("now the block is its own");
    check_contents(&pool, &c, &[1, 2, 3, 7]);
}

#[test]
fn tables_never_grow_their_memory() {
    let mut pool = pool(KvFormat::F16, 8);
    let mut a = pool.sequence(32);
    let place = a.blocks.as_ptr();
    pool.reserve(&mut a, 30).expect("free");
    a.advance(30);
    let _b = pool.fork(&a, 30);
    pool.reserve(&mut a, 2).expect("free");
    assert_eq!((a.blocks.as_ptr(), a.blocks.len()), (place, 2));
}

#[test]
fn halves_round_to_nearest_even() {
    let threads = ThreadPool::new(2);
    let mut pool = pool(KvFormat::F16, 1);
    let mut sequence = pool.sequence(16);
    pool.reserve(&mut sequence, 1).expect("free");
    // Between 2048 and 2050, between 2050 and 2052, the smallest subnormal's half, past the largest, and exact ones.
    let k = [2049.0, 2051.0, 2.98e-8, 65520.0, -1.5, 0.1];
    pool.write_rows(&threads, 0, &[sequence.segment(0, 1)], &k, &[0.0; 10]);
    sequence.advance(1);
    assert_eq!(row(&pool, &sequence, 0).0, [2048.0, 2052.0, 0.0, f32::INFINITY, -1.5, 0.099975586]);
}

#[test]
fn sizes_are_those_of_the_layout() {
    let pool = pool(KvFormat::F16, 10);
    // Layer 0: 2·3·16 + 2·16·16, layer 1: 1·4·16 + 1·16·16 elements a block.
    assert_eq!(
        (pool.n_bytes(), pool.n_layers(), pool.exact_format()),
        (10 * 2 * (96 + 512 + 64 + 256), 2, KvFormat::F16)
    );
    assert_eq!((pool.block_bytes(KvFormat::F16), KvLayout::blocks_for(17)), (2 * (96 + 512 + 64 + 256), 2));
}

#[test]
#[should_panic(expected = "the sequence belongs to another pool")]
fn a_strange_sequence_is_refused() {
    let mut sequence = pool(KvFormat::F16, 1).sequence(1);
    let _ = pool(KvFormat::F16, 1).reserve(&mut sequence, 1);
}

#[test]
fn memory_for_blocks_holds_them() {
    for (n_layers, policy) in [(1, KvPolicy::F16), (7, KvPolicy::TIERED), (18, KvPolicy::Q8), (30, KvPolicy::TIERED)] {
        let layout = KvLayout { layers: vec![KvShape { n_kv_heads: 1, k_dim: 256, v_dim: 256 }; n_layers] };
        for n_blocks in [1, 5, 128, 1000] {
            let n_bytes = layout.memory_for(policy.formats(), n_blocks);
            let mut pool = BlockPool::within(&layout, policy.formats(), n_bytes).expect("addresses are free");
            let mut sequence = pool.sequence(n_blocks * BLOCK_TOKENS);
            pool.reserve(&mut sequence, n_blocks * BLOCK_TOKENS)
                .unwrap_or_else(|e| panic!("{n_layers} {n_blocks}: {e}"));
        }
    }
}

/// A sequence of `len` tagged positions that aged, in a pool of some pages.
fn aged(policy: KvPolicy, len: usize) -> (ThreadPool, BlockPool, Sequence, Vec<u16>, Ageing) {
    let (threads, layers) = (ThreadPool::new(2), vec![SHAPE, KvShape { n_kv_heads: 1, k_dim: 4, v_dim: 2 }]);
    let mut pool = BlockPool::within(&KvLayout { layers }, policy.formats(), 4 * PAGE_BYTES).expect("addresses");
    let (mut sequence, mut ageing) = (pool.sequence(10_000), Ageing::default());
    let tags: Vec<u16> = (0..len as u16).map(|i| i * 7).collect();
    for tags in tags.chunks(50) {
        append(&threads, &mut pool, &mut sequence, tags).expect("there is room");
        pool.write_rows(
            &threads,
            1,
            &[segment_before(&sequence, tags.len())],
            &vec![1.0; 4 * len],
            &vec![-1.0; 2 * len],
        );
        let quantizer = Quantizer { table: attention::pick(Isa::best()), threads: &threads };
        while pool.age(quantizer, &mut sequence, &mut ageing, policy, 3) > 0 {}
    }
    (threads, pool, sequence, tags, ageing)
}

/// The last `n` rows of a sequence, as the step that wrote them saw them.
fn segment_before(sequence: &Sequence, n: usize) -> Segment<'_> {
    let pos = sequence.len() - n;
    Segment { first_row: 0, n_rows: n, pos, n_kv: sequence.len(), blocks: &sequence.blocks }
}

/// Checks layer 0 within what each block's format loses: half a step of 64 at most.
fn check_about(pool: &BlockPool, sequence: &Sequence, tags: &[u16]) {
    let (mut k, mut v) = (vec![0.0; SHAPE.k_block_len()], vec![0.0; SHAPE.v_block_len()]);
    for (i, block) in sequence.blocks().enumerate() {
        let part = pool.layer(0).part(SHAPE, block);
        attention::pick(Isa::Scalar).dequantize(SHAPE, part, &mut k, &mut v);
        let bound = [0.0, 0.0, 0.27, 2.6, 11.5][block.format() as usize];
        for (slot, &tag) in tags[(i * 16).min(tags.len())..].iter().take(16).enumerate() {
            let (rows_k, rows_v) = rows(&[tag]);
            let is_near = |a: f32, b: f32| (a - b).abs() <= bound;
            assert!(
                (0..6).all(|d| is_near(k[d * 16 + slot], rows_k[d])),
                "{block:?}, key of position {}",
                i * 16 + slot
            );
            let at = |c: usize| v[(c / 5 * 16 + slot) * 16 + c % 5];
            assert!((0..10).all(|c| is_near(at(c), rows_v[c])), "{block:?}, value of position {}", i * 16 + slot);
        }
    }
}

#[test]
fn what_ages_holds_the_same_in_fewer_bytes() {
    for policy in [KvPolicy::Q8, KvPolicy::Tiered { hot: 32, warm: 128 }, KvPolicy::Q4, KvPolicy::Q2] {
        let (_, mut pool, sequence, tags, _) = aged(policy, 600);
        check_about(&pool, &sequence, &tags);
        let stats = pool.stats();
        assert_eq!((stats.in_use, stats.references), (38, 38));
        assert_eq!(pool.held_bytes(), pool.sequence_bytes(&sequence));
        assert!(pool.held_bytes() < 38 * pool.block_bytes(KvFormat::F16), "{policy}");
        let n_idle = pool.committed_bytes();
        pool.reclaim(0);
        assert!(pool.committed_bytes() <= n_idle && pool.committed_bytes() >= pool.held_bytes());
    }
}

#[test]
fn a_fork_inside_a_block_of_few_bits_writes_to_a_copy() {
    let (threads, mut pool, sequence, tags, _) = aged(KvPolicy::Tiered { hot: 32, warm: 128 }, 600);
    for len in [20, 100, 300] {
        let mut fork = pool.fork(&sequence, len);
        let block = fork.blocks[len / 16];
        assert!(!block.format().is_exact());
        append(&threads, &mut pool, &mut fork, &[1, 2, 3]).expect("there is room");
        assert_eq!(fork.blocks[len / 16].format(), KvFormat::F16);
        // What stood there came back from few bits, what is new is exact.
        assert_eq!(row(&pool, &fork, len + 2), rows(&[3]));
        check_about(&pool, &sequence, &tags);
        let (old_k, _) = row(&pool, &fork, len - 1);
        let (k, _) = rows(&[tags[len - 1]]);
        assert!(old_k.iter().zip(k).all(|(a, b)| (a - b).abs() < 3.0), "{old_k:?}");
        drop(fork);
        assert_eq!((pool.stats().in_use, pool.stats().references), (38, 38));
    }
}

#[test]
fn what_was_made_of_a_block_is_not_what_is_written_to_it_later() {
    let (threads, mut pool, mut a, tags, mut ageing) = aged(KvPolicy::Tiered { hot: 1000, warm: 1000 }, 320);
    let quantizer = Quantizer { table: attention::pick(Isa::best()), threads: &threads };
    let mut b = pool.fork(&a, 20);
    let mut of_b = Ageing::default();
    while pool.age(quantizer, &mut a, &mut ageing, KvPolicy::Q8, 4) > 0 {}
    check_about(&pool, &a, &tags);
    // The exact block inside which it goes on is its own now, and is written to where it lies.
    let more: Vec<u16> = (0..400).map(|i| i * 5 + 3).collect();
    append(&threads, &mut pool, &mut b, &more).expect("there is room");
    while pool.age(quantizer, &mut b, &mut of_b, KvPolicy::Q8, 4) > 0 {}
    assert!(!b.blocks[1].format().is_exact() && a.blocks[0] == b.blocks[0], "they share what they have in common");
    check_about(&pool, &b, &[&tags[..20], &more].concat());
    check_about(&pool, &a, &tags);
}

#[test]
fn a_block_of_few_bits_that_nobody_else_has_is_written_to_as_a_copy() {
    let (threads, mut pool, sequence, tags, _) = aged(KvPolicy::Q8, 320);
    let mut fork = pool.fork(&sequence, 20);
    drop(sequence);
    append(&threads, &mut pool, &mut fork, &[1, 2, 3]).expect("there is room");
    assert_eq!(fork.blocks[1].format(), KvFormat::F16);
    assert_eq!(row(&pool, &fork, 22), rows(&[3]));
    // What stood there came back from 8 bits.
    let ((old_k, _), (k, _)) = (row(&pool, &fork, 19), rows(&[tags[19]]));
    assert!(old_k.iter().zip(k).all(|(a, b)| (a - b).abs() < 0.3), "{old_k:?}");
    assert_eq!((pool.stats().in_use, pool.stats().references), (2, 2));
}

#[test]
fn sequences_that_share_age_together_where_they_are_alike() {
    let policy = KvPolicy::Tiered { hot: 16, warm: 64 };
    let (threads, mut pool, mut a, mut tags, mut ageing) = aged(KvPolicy::Tiered { hot: 1000, warm: 1000 }, 320);
    let quantizer = Quantizer { table: attention::pick(Isa::best()), threads: &threads };
    let mut b = pool.fork(&a, 320);
    append(&threads, &mut pool, &mut a, &[5; 16]).expect("there is room");
    append(&threads, &mut pool, &mut b, &[6; 16]).expect("there is room");
    let exact = pool.stats();
    assert_eq!((exact.in_use, exact.references), (22, 42));
    let mut other = ageing;
    while pool.age(quantizer, &mut a, &mut ageing, policy, 4) > 0 {}
    // The other one still has all of its own.
    check_contents(&pool, &b, &[tags.as_slice(), &[6; 16]].concat());
    assert!(pool.stats().in_use > 30);
    while pool.age(quantizer, &mut b, &mut other, policy, 4) > 0 {}
    assert_eq!((pool.stats().in_use, pool.stats().references), (22, 42));
    assert_eq!(a.blocks[..20], b.blocks[..20]);
    tags.extend([5; 16]);
    check_about(&pool, &a, &tags);
    drop(a);
    tags[320..].fill(6);
    check_about(&pool, &b, &tags);
}

#[test]
fn a_full_pool_leaves_a_sequence_as_it_is() {
    let (threads, mut pool, mut a, tags, mut ageing) = aged(KvPolicy::Tiered { hot: 1000, warm: 1000 }, 320);
    // All pages go to exact blocks: there is none for the first unit of few bits.
    let mut all = pool.sequence(1 << 20);
    let n_free = pool.stats().free;
    pool.reserve(&mut all, n_free * 16).expect("so many are free");
    let quantizer = Quantizer { table: attention::pick(Isa::best()), threads: &threads };
    assert_eq!(pool.age(quantizer, &mut a, &mut ageing, KvPolicy::Q8, 4), 0);
    check_contents(&pool, &a, &tags);
    drop(all);
    assert_eq!(pool.age(quantizer, &mut a, &mut ageing, KvPolicy::Q8, 4), 3);
    check_about(&pool, &a, &tags);
}

#[test]
fn units_are_read_and_written_as_a_whole() {
    let (_, pool, sequence, tags, _) = aged(KvPolicy::Tiered { hot: 32, warm: 128 }, 600);
    let (_, mut other, mut copy, ..) = aged(KvPolicy::Tiered { hot: 32, warm: 128 }, 600);
    for (i, (from, to)) in sequence.blocks().zip(copy.blocks().collect::<Vec<_>>()).enumerate() {
        let mut bytes = vec![0; pool.unit_bytes(from.format())];
        pool.read_block(from, &mut bytes);
        assert_eq!(from.format(), to.format(), "block {i}");
        let cleared = vec![0; bytes.len()];
        other.write_block(to, &cleared);
        other.write_block(to, &bytes);
    }
    check_about(&other, &copy, &tags);
    copy.truncate(0);
}

#[test]
fn what_is_made_ready_is_taken_first_and_never_more_than_there_is() {
    let layout = KvLayout { layers: vec![KvShape { n_kv_heads: 2, k_dim: 64, v_dim: 64 }; 4] };
    let unit = layout.unit_bytes(KvFormat::F16);
    let mut pool = BlockPool::within(&layout, &[KvFormat::F16], 3 * PAGE_BYTES).expect("addresses are there");
    assert!(pool.make_ready(unit) && !pool.make_ready(unit));
    assert_eq!(pool.committed_bytes(), PAGE_BYTES);
    let mut sequence = pool.sequence(BLOCK_TOKENS);
    pool.reserve(&mut sequence, BLOCK_TOKENS).expect("it is ready");
    assert_eq!(pool.committed_bytes(), PAGE_BYTES, "another page was taken");
    while pool.make_ready(100 * PAGE_BYTES) {}
    assert_eq!(pool.committed_bytes(), 3 * PAGE_BYTES);
    pool.reclaim(0);
    assert_eq!(pool.committed_bytes(), PAGE_BYTES, "what nobody has is given back");
}
