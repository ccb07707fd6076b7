//! Every row of the table against plain loops: integers, so equal.

use super::*;
use crate::Isa;
use proptest::prelude::*;

fn check(query: &[i8], rows: &[i8]) {
    let n_rows = rows.len() / query.len();
    let mut exact = vec![0; n_rows];
    scalar::dots(query, rows, &mut exact);
    for table in available() {
        let mut out = vec![i32::MIN; n_rows];
        table.dots(query, rows, &mut out);
        assert_eq!(out, exact, "{}", table.isa());
    }
}

#[test]
fn extreme_rows() {
    for n in [64, 128, 448, 576, 896] {
        for q in [127i8, -127, 0, 1] {
            for x in [127i8, -128, -127, 0, -1] {
                check(&vec![q; n], &vec![x; 7 * n]);
            }
        }
    }
    check(&[1; 64], &[]);
}

#[test]
#[should_panic(expected = "the query holds -128")]
fn a_query_keeps_to_its_range() {
    let mut query = [0; 64];
    query[63] = -128;
    pick(Isa::best()).dots(&query, &[0; 64], &mut [0]);
}

#[test]
#[should_panic(expected = "no multiple of 64")]
fn rows_are_padded() {
    pick(Isa::best()).dots(&[0; 63], &[0; 63], &mut [0]);
}

proptest! {
    #[test]
    fn random_rows(chunks in 1usize..16, n_rows in 0usize..23, seed in any::<u64>(), start in 0usize..9) {
        let mut state = seed | 1;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as i8
        };
        let query: Vec<i8> = (0..chunks * PADDING).map(|_| byte().max(-127)).collect();
        let rows: Vec<i8> = (0..start + n_rows * query.len()).map(|_| byte()).collect();
        check(&query, &rows[start..]);
    }
}
