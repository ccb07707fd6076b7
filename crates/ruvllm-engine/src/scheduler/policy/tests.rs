//! Plans for given queues.

use super::*;

const LIMITS: Limits = Limits { step_tokens: 512, prefill_tokens: 128 };

fn running(requests: &[(u64, usize, usize)]) -> Vec<Running> {
    requests
        .iter()
        .map(|&(id, n_left, growth_bytes)| Running { id, n_left, n_answer: usize::from(n_left == 1), growth_bytes })
        .collect()
}

fn ready(id: u64, n_left: usize, need_bytes: usize) -> Waiting {
    Waiting { id, n_left, need_bytes, standing: Standing::Ready }
}

fn show(limits: Limits, free: (usize, usize), running: &[Running], waiting: &[Waiting]) -> String {
    let room = Room { free_bytes: free.0, free_seqs: free.1 };
    let plan = plan(limits, room, running, waiting.iter().copied());
    let rows: Vec<String> = plan.rows.iter().map(|(id, n)| format!("{id}x{n}")).collect();
    format!("admit {:?}, rows {}", plan.admit, rows.join(" "))
}

#[test]
fn answers_get_a_row_each_and_prompts_the_rest_by_age() {
    insta::assert_snapshot!(show(LIMITS, (0, 0), &[], &[]), @"admit [], rows ");
    let all = running(&[(1, 1, 0), (2, 700, 0), (3, 1, 0), (4, 50, 0)]);
    insta::assert_snapshot!(show(LIMITS, (0, 0), &all, &[]), @"admit [], rows 1x1 2x128 3x1");
    let all = running(&[(1, 1, 0), (2, 100, 0), (3, 1, 0), (4, 50, 0)]);
    insta::assert_snapshot!(show(LIMITS, (0, 0), &all, &[]), @"admit [], rows 1x1 2x100 3x1 4x28");
    // Nobody writes yet: the step belongs to the prompts.
    let all = running(&[(2, 400, 0), (4, 600, 0)]);
    insta::assert_snapshot!(show(LIMITS, (0, 0), &all, &[]), @"admit [], rows 2x400 4x112");
    // More answers than the step has tokens: all are written, and the oldest prompt goes on.
    let narrow = Limits { step_tokens: 2, prefill_tokens: 2 };
    let all = running(&[(1, 1, 0), (2, 1, 0), (3, 9, 0), (4, 1, 0), (5, 9, 0)]);
    insta::assert_snapshot!(show(narrow, (0, 0), &all, &[]), @"admit [], rows 1x1 2x1 3x1 4x1");
}

#[test]
fn requests_are_taken_in_while_all_they_may_need_fits() {
    let queue = [ready(5, 40, 100), ready(6, 40, 100), ready(7, 40, 10)];
    // 150 of 350 are promised; 7 would fit and does not pass 6.
    let all = running(&[(1, 1, 100), (2, 1, 50)]);
    insta::assert_snapshot!(show(LIMITS, (349, 8), &all, &queue), @"admit [5], rows 1x1 2x1 5x40");
    insta::assert_snapshot!(show(LIMITS, (350, 8), &all, &queue), @"admit [5, 6], rows 1x1 2x1 5x40 6x40");
    insta::assert_snapshot!(show(LIMITS, (360, 2), &all, &queue), @"admit [5, 6], rows 1x1 2x1 5x40 6x40");
    insta::assert_snapshot!(show(LIMITS, (360, 0), &all, &queue), @"admit [], rows 1x1 2x1");
    // Whoever would be alone is taken in: only trying tells whether it fits.
    insta::assert_snapshot!(show(LIMITS, (50, 8), &[], &queue), @"admit [5], rows 5x40");
}

#[test]
fn who_waits_for_a_prefix_is_passed_and_who_was_preempted_is_not() {
    let passed = Waiting { standing: Standing::Passed, ..ready(5, 900, 10) };
    let all = running(&[(1, 600, 10)]);
    insta::assert_snapshot!(show(LIMITS, (99, 8), &all, &[passed, ready(6, 40, 10)]), @"admit [6], rows 1x512");
    let blocking = Waiting { standing: Standing::Blocking, ..ready(5, 900, 10) };
    insta::assert_snapshot!(show(LIMITS, (99, 8), &all, &[blocking, ready(6, 40, 10)]), @"admit [], rows 1x512");
    // An old request that comes back goes before younger ones.
    let all = running(&[(4, 1, 10), (7, 30, 10)]);
    insta::assert_snapshot!(show(LIMITS, (99, 8), &all, &[ready(5, 120, 10)]), @"admit [5], rows 4x1 5x120 7x8");
}
