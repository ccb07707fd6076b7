//! Plans for given queues.

use super::*;

const LIMITS: Limits = Limits { step_tokens: 512, prefill_tokens: 128 };

fn running(requests: &[(u64, usize, usize)]) -> Vec<Running> {
    let one = |&(id, n_left, growth_bytes)| {
        let n_answer = usize::from(n_left == 1);
        Running { id, n_left, n_answer, growth_bytes, effective_priority: 0, n_served: 0 }
    };
    requests.iter().map(one).collect()
}

fn ready(id: u64, n_left: usize, need_bytes: usize) -> Waiting {
    Waiting { id, n_left, need_bytes, admission: Admission::Ready, effective_priority: 0, n_served: 0 }
}

const NONE: Capacity = free(0, 0);

const fn free(free_bytes: usize, free_seqs: usize) -> Capacity {
    Capacity { free_bytes, free_seqs }
}

fn show(limits: Limits, capacity: Capacity, running: &[Running], waiting: &[Waiting]) -> String {
    let plan = plan(limits, capacity, running, waiting.iter().copied());
    let rows: Vec<String> = plan.rows.iter().map(|(id, n)| format!("{id}x{n}")).collect();
    format!("admit {:?}, rows {}", plan.admit, rows.join(" "))
}

#[test]
fn answers_get_a_row_each_and_prompts_the_rest_by_age() {
    insta::assert_snapshot!(show(LIMITS, NONE, &[], &[]), @"admit [], rows ");
    let all = running(&[(1, 1, 0), (2, 700, 0), (3, 1, 0), (4, 50, 0)]);
    insta::assert_snapshot!(show(LIMITS, NONE, &all, &[]), @"admit [], rows 1x1 2x128 3x1");
    let all = running(&[(1, 1, 0), (2, 100, 0), (3, 1, 0), (4, 50, 0)]);
    insta::assert_snapshot!(show(LIMITS, NONE, &all, &[]), @"admit [], rows 1x1 2x100 3x1 4x28");
    // Nobody writes yet: the step belongs to the prompts.
    let all = running(&[(2, 400, 0), (4, 600, 0)]);
    insta::assert_snapshot!(show(LIMITS, NONE, &all, &[]), @"admit [], rows 2x400 4x112");
    // More answers than the step has tokens: all are written, and the oldest prompt goes on.
    let narrow = Limits { step_tokens: 2, prefill_tokens: 2 };
    let all = running(&[(1, 1, 0), (2, 1, 0), (3, 9, 0), (4, 1, 0), (5, 9, 0)]);
    insta::assert_snapshot!(show(narrow, NONE, &all, &[]), @"admit [], rows 1x1 2x1 3x1 4x1");
}

#[test]
fn requests_are_taken_in_while_all_they_may_need_fits() {
    let queue = [ready(5, 40, 100), ready(6, 40, 100), ready(7, 40, 10)];
    // 150 of 350 are promised; 7 would fit and does not pass 6.
    let all = running(&[(1, 1, 100), (2, 1, 50)]);
    insta::assert_snapshot!(show(LIMITS, free(349, 8), &all, &queue), @"admit [5], rows 1x1 2x1 5x40");
    insta::assert_snapshot!(show(LIMITS, free(350, 8), &all, &queue), @"admit [5, 6], rows 1x1 2x1 5x40 6x40");
    insta::assert_snapshot!(show(LIMITS, free(360, 2), &all, &queue), @"admit [5, 6], rows 1x1 2x1 5x40 6x40");
    insta::assert_snapshot!(show(LIMITS, free(360, 0), &all, &queue), @"admit [], rows 1x1 2x1");
    // Whoever would be alone is taken in: only trying tells whether it fits.
    insta::assert_snapshot!(show(LIMITS, free(50, 8), &[], &queue), @"admit [5], rows 5x40");
}

#[test]
fn who_waits_for_a_prefix_is_passed_and_who_was_preempted_is_not() {
    let passed = Waiting { admission: Admission::Deferred, ..ready(5, 900, 10) };
    let all = running(&[(1, 600, 10)]);
    insta::assert_snapshot!(show(LIMITS, free(99, 8), &all, &[passed, ready(6, 40, 10)]), @"admit [6], rows 1x512");
    let blocking = Waiting { admission: Admission::Blocked, ..ready(5, 900, 10) };
    insta::assert_snapshot!(show(LIMITS, free(99, 8), &all, &[blocking, ready(6, 40, 10)]), @"admit [], rows 1x512");
    // An old request that comes back goes before younger ones.
    let all = running(&[(4, 1, 10), (7, 30, 10)]);
    insta::assert_snapshot!(show(LIMITS, free(99, 8), &all, &[ready(5, 120, 10)]), @"admit [5], rows 4x1 5x120 7x8");
}

fn queued(queue: &[(u64, i32, u64)]) -> Vec<Queued> {
    let request = |(id, &(tenant, effective_priority, n_tokens)): (usize, _)| Queued {
        id: id as u64,
        tenant,
        effective_priority,
        n_tokens,
        was_running: false,
    };
    queue.iter().enumerate().map(request).collect()
}

fn show_order(queue: &[Queued], counters: &VirtualTokenCounters) -> String {
    let shares = Shares::new(usize::MAX, std::iter::empty(), queue.iter().map(|request| request.tenant));
    format!("{:?}", order(queue, counters, &shares))
}

#[test]
fn a_higher_effective_priority_comes_first_and_tenants_take_turns() {
    let counters = VirtualTokenCounters::default();
    insta::assert_snapshot!(show_order(&queued(&[(1, 0, 9), (1, 2, 9), (1, 0, 9), (1, 1, 9)]), &counters), @"[1, 3, 0, 2]");
    // Tenant 1 came first with five; 2 and 3 have one and two.
    let flood =
        queued(&[(1, 0, 10), (1, 0, 10), (1, 0, 10), (1, 0, 10), (1, 0, 10), (2, 0, 10), (3, 0, 10), (3, 0, 10)]);
    insta::assert_snapshot!(show_order(&flood, &counters), @"[0, 5, 6, 1, 7, 2, 3, 4]");
    // Long ones count for more.
    let long = queued(&[(1, 0, 1000), (1, 0, 1000), (2, 0, 300), (2, 0, 300), (2, 0, 300), (2, 0, 300)]);
    insta::assert_snapshot!(show_order(&long, &counters), @"[0, 2, 3, 4, 5, 1]");
    // Who had much waits, and who was preempted goes on first.
    let mut counters = VirtualTokenCounters::default();
    counters.charge(1, 25);
    insta::assert_snapshot!(show_order(&flood, &counters), @"[5, 6, 7, 0, 1, 2, 3, 4]");
    let mut back = flood.clone();
    back[4].was_running = true;
    insta::assert_snapshot!(show_order(&back, &counters), @"[4, 5, 6, 7, 0, 1, 2, 3]");
}

#[test]
fn an_effective_priority_rises_to_the_highest_priority_and_no_further() {
    let after = |priority, seconds, highest| effective_priority(priority, Duration::from_secs(seconds), highest);
    assert_eq!([after(0, 0, 3), after(0, 4, 3), after(0, 5, 3), after(0, 14, 3), after(0, 900, 3)], [0, 0, 1, 2, 3]);
    assert_eq!([after(-2, 4, 0), after(-2, 10, 0), after(5, 10, 3), after(0, 10, 0)], [-2, 0, 5, 0]);
}

#[test]
fn who_comes_back_has_no_credit_and_no_debt_beyond_the_others() {
    let mut counters = VirtualTokenCounters::default();
    counters.join(1, [].into_iter());
    counters.charge(1, 500);
    counters.join(2, [1].into_iter());
    assert_eq!(counters.served(2), 500);
    counters.charge(2, 100);
    // 1 stopped asking, and is ahead of 2 when it asks again; then it has what it had.
    counters.join(1, [2].into_iter());
    assert_eq!((counters.served(1), counters.served(2)), (600, 600));
    counters.join(1, [1, 2].into_iter());
    assert_eq!(counters.served(1), 600);
    // Nobody was there: it starts anew.
    counters.join(3, [].into_iter());
    assert_eq!(counters, VirtualTokenCounters { n_tokens: [(3, 0)].into() });
}

#[test]
fn prompts_of_a_higher_effective_priority_are_read_first() {
    let mut all = running(&[(1, 1, 0), (2, 700, 0), (3, 100, 0), (4, 90, 0)]);
    (all[2].effective_priority, all[3].effective_priority) = (1, 1);
    insta::assert_snapshot!(show(LIMITS, NONE, &all, &[]), @"admit [], rows 1x1 3x100 4x28");
}

#[test]
fn the_least_important_gives_way_and_the_youngest_of_those() {
    assert_eq!(victim([(0, 1), (0, 2), (1, 3)].into_iter()), Some(2));
    assert_eq!(victim([(-1, 1), (0, 2), (0, 3)].into_iter()), Some(1));
    assert_eq!(victim(std::iter::empty()), None);
}

#[test]
fn prompts_of_who_had_less_are_read_first() {
    let mut all = running(&[(1, 1, 0), (2, 700, 0), (3, 100, 0)]);
    (all[1].n_served, all[2].n_served) = (900, 40);
    insta::assert_snapshot!(show(LIMITS, NONE, &all, &[]), @"admit [], rows 1x1 2x28 3x100");
}

fn shares(n_places: usize, running: &[u64], waiting: &[u64]) -> Shares {
    Shares::new(n_places, running.iter().copied(), waiting.iter().copied())
}

#[test]
fn who_has_its_share_comes_behind_who_has_not() {
    // Tenant 1 holds 6 of 8 places and waits with three; 2 has come just now, and 3 has four already.
    let queue = queued(&[(1, 0, 9), (1, 0, 9), (1, 0, 9), (2, 0, 900), (2, 0, 900)]);
    let held = shares(8, &[1, 1, 1, 1, 1, 1], &[1, 2]);
    assert_eq!(order(&queue, &VirtualTokenCounters::default(), &held), [3, 4, 0, 1, 2]);
    // A higher effective priority still comes first.
    let queue = queued(&[(1, 1, 9), (2, 0, 9)]);
    assert_eq!(order(&queue, &VirtualTokenCounters::default(), &held), [0, 1]);
}

/// Ids are places in the list.
fn holders(tenants: &[u64]) -> Vec<Holder> {
    let holder =
        |(id, &tenant): (usize, &u64)| Holder { id: id as u64, tenant, priority: 0, n_turn: 0, is_unread: false };
    tenants.iter().enumerate().map(holder).collect()
}

#[test]
fn a_tenant_beyond_its_share_gives_places_to_those_who_wait() {
    let claim = |tenant| Claim { tenant, effective_priority: 0 };
    let give = |tenants: &[u64], tenant: u64| {
        holder_to_preempt(&holders(tenants), &shares(tenants.len(), tenants, &[tenant]), claim(tenant))
    };
    // The youngest of who has most; until each has its share.
    assert_eq!(give(&[1, 1, 1, 1], 2), Some(3));
    assert_eq!(give(&[1, 1, 1, 2], 2), Some(2));
    assert_eq!(give(&[1, 1, 2, 2], 2), None);
    assert_eq!(give(&[1, 1, 2, 2], 1), None);
    assert_eq!(give(&[1, 1, 1, 2, 3, 3], 4), Some(2));
    // Nobody takes its own places, or those of who is more important.
    assert_eq!(give(&[1, 1, 1, 1], 1), None);
    let mut important = holders(&[1, 1, 1, 1]);
    important.iter_mut().for_each(|holder| holder.priority = 1);
    let held = shares(4, &[1, 1, 1, 1], &[2]);
    assert_eq!(holder_to_preempt(&important, &held, claim(2)), None);
    assert_eq!(holder_to_preempt(&important, &held, Claim { tenant: 2, effective_priority: 1 }), Some(3));
}

#[test]
fn more_tenants_than_places_take_turns() {
    let (mut two, held) = (holders(&[1, 2]), shares(2, &[1, 2], &[3]));
    let claim = Claim { tenant: 3, effective_priority: 0 };
    assert_eq!(holder_to_preempt(&two, &held, claim), None);
    (two[0].n_turn, two[1].n_turn) = (TURN_TOKENS + 1, TURN_TOKENS);
    assert_eq!(holder_to_preempt(&two, &held, claim), Some(0));
    // Who has one already has no second turn.
    assert_eq!(holder_to_preempt(&two, &shares(2, &[1, 2], &[3]), Claim { tenant: 2, effective_priority: 0 }), None);
}

#[test]
fn an_answer_that_nobody_reads_gives_its_place_to_anybody() {
    let mut all = holders(&[1, 1, 2]);
    all[0].is_unread = true;
    let held = shares(3, &[1, 1, 2], &[1]);
    assert_eq!(holder_to_preempt(&all, &held, Claim { tenant: 1, effective_priority: 0 }), Some(0));
    assert_eq!(holder_to_preempt(&all, &held, Claim { tenant: 1, effective_priority: -1 }), None);
}
