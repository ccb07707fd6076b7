//! How activations are quantised, and how they are taken in.

use super::super::acts::{ActBlock, Chunking, MadeRows};
use super::*;

#[test]
fn quantised_blocks_have_the_same_bits_in_every_row_of_the_table() {
    let mut rng = Rng(14);
    let mut x = rng.floats(32 * 64);
    x[0..32].fill(0.0);
    x[40] = f32::NAN;
    x[70] = f32::INFINITY;
    x[96..128].iter_mut().for_each(|x| *x *= 1e-38);
    x[128..160].iter_mut().for_each(|x| *x *= 1e37);
    x[160..192].fill(-1e-31);
    // A scale of 1, and two groups with low bytes of -128, 127 and 128.
    x[192..224].iter_mut().enumerate().for_each(|(i, x)| *x = i as f32 + if i == 31 { 96.0 } else { 0.5 });
    x[200..206].copy_from_slice(&[128.0, 127.0, -128.0, -129.0, 383.6, 32_512.0]);
    let mut expected: Vec<ActBlock> = vec![bytemuck::Zeroable::zeroed(); 64];
    pick(Isa::Scalar).quantize(&x, &mut expected);
    for table in rows() {
        let mut out = vec![bytemuck::Zeroable::zeroed(); 64];
        table.quantize(&x, &mut out);
        assert_eq!(
            bytemuck::cast_slice::<ActBlock, u8>(&out),
            bytemuck::cast_slice::<_, u8>(&expected),
            "{}",
            table.name()
        );
    }
    for (b, (block, x)) in expected.iter().zip(x.chunks_exact(32)).enumerate() {
        let q: [i32; BLOCK] = std::array::from_fn(|i| block.q(i));
        let sum: i32 = q.iter().sum();
        assert_eq!((block.neg_sum, block.neg_half_sums[0] + block.neg_half_sums[1]), (-sum, -sum));
        for byte in block.hi.into_iter().chain(block.lo) {
            assert_ne!(byte, i8::MIN, "block {b}");
        }
        match b {
            0 | 3 | 5 => assert!(block.scale == 0.0 && q == [0; 32]),
            1 | 2 => assert!(block.scale.is_nan() && q == [0; 32]),
            _ => {
                assert!(f64::from(block.scale) <= step(x), "block {b}: a scale of {}", block.scale);
                assert_ne!(block.large[0], block.large[1]);
                for (i, (&q, &x)) in q.iter().zip(x).enumerate() {
                    assert!(block.hi[i] == 0 || block.large.contains(&((i / GROUP) as u32)), "block {b}: {i} is large");
                    // Half a step, or one and a half above what is left out, and what the product with `1 / scale` rounds.
                    let half_steps = if q & 0xff == 0x81 { 1.5 } else { 0.5 };
                    let bound = f64::from(block.scale) * half_steps + f64::from(x.abs() * f32::EPSILON);
                    let error = (f64::from(q) * f64::from(block.scale) - f64::from(x)).abs();
                    assert!(error <= bound, "block {b}: {q} for {x}");
                }
            }
        }
    }
    // Ties go to even: 0.5, 1.5, 2.5 at a scale of 1.
    assert_eq!([0, 1, 2, 3].map(|i| expected[6].q(i)), [0, 2, 2, 4]);
    assert_eq!([8, 9, 10, 11, 12, 13].map(|i| expected[6].q(i)), [129, 127, -127, -129, 385, 32_512]);
}

#[test]
fn rows_that_are_made_have_the_bits_of_rows_that_are_given() {
    for (n, k, chunking) in [
        (1, 64, Chunking::Rows),
        (1, 10_016, Chunking::Anywhere),
        (23, 576, Chunking::Rows),
        (40, 1536, Chunking::Anywhere),
    ] {
        let given = Rng(18).floats(n * k);
        let formats = [(ActFormat::Q16, 1), (ActFormat::Q16, 3), (ActFormat::F32, 3)];
        for (format, n_threads) in formats {
            let (threads, table) = (ThreadPool::new(n_threads), pick(Isa::best()));
            let (mut x, mut twice, mut made) = (vec![f32::NAN; n * k], vec![1.0; n * k], Acts::new(k, n));
            let rows = MadeRows { rows: &mut x, n, format, chunking };
            made.make(table, &threads, rows, [&mut twice], &|range, x, [twice]| {
                twice.iter_mut().zip(&given[range.clone()]).for_each(|(y, x)| *y += 2.0 * x);
                assert!(
                    chunking == Chunking::Anywhere || range.start % k == 0 && range.end % k == 0,
                    "{range:?} of rows of {k}"
                );
                assert!(x.iter().all(|x| x.is_nan()), "{range:?} is made twice");
                x.copy_from_slice(&given[range]);
            });
            assert_eq!(x, given);
            assert!(twice.iter().zip(&given).all(|(y, x)| *y == 1.0 + 2.0 * x));
            let set = acts(table, &threads, &given, n, k, format);
            assert!(made.has(format) && made.n() == n && made.k() == k);
            match format {
                ActFormat::F32 => assert_eq!(made.floats(), set.floats()),
                ActFormat::Q16 => assert_eq!(made.blocks(), set.blocks()),
            }
        }
    }
}

#[test]
#[should_panic(expected = "rows of 48 values are not whole blocks of 32")]
fn rows_that_are_no_blocks_are_not_made_either() {
    let mut x = [0.0; 48];
    let rows = MadeRows { rows: &mut x, n: 1, format: ActFormat::Q16, chunking: Chunking::Rows };
    Acts::new(64, 1).make(pick(Isa::Scalar), &ThreadPool::new(1), rows, [], &|_, _, []| {});
}
