//! Scores of constructed answers: what is 0, what is 1, and what lies between.

use proptest::prelude::*;

use super::*;

fn near(found: Option<f32>, expected: f32) {
    let found = found.expect("there is something to judge by");
    assert!((found - expected).abs() < 1e-5, "{found}, not {expected}");
}

#[test]
fn a_form_is_kept_or_broken_early_or_late() {
    let check = |n_valid, n_tokens, is_complete, expected: f32| {
        assert_eq!(schema_compliance(Checked { n_valid, n_tokens, is_complete }), expected);
    };
    check(40, 40, true, 1.0);
    // Cut off: all that is there is valid.
    check(40, 40, false, 0.5);
    check(20, 40, false, 0.25);
    check(0, 40, false, 0.0);
    check(0, 0, false, 0.0);
    let all: Vec<f32> =
        (0..=40).map(|n_valid| schema_compliance(Checked { n_valid, n_tokens: 40, is_complete: false })).collect();
    assert!(all.is_sorted());
}

#[test]
fn parts_are_about_the_same_or_not() {
    let at = |angle: f32| vec![angle.cos(), angle.sin()];
    near(coherence(&[at(0.3), at(0.3), at(0.3)]), 1.0);
    near(coherence(&[vec![1.0, 0.0], vec![0.0, 1.0], vec![1.0, 0.0]]), 0.0);
    // Opposites are no better than strangers.
    near(coherence(&[at(0.0), at(std::f32::consts::PI)]), 0.0);
    near(coherence(&[vec![1.0, 0.0], vec![1.0, 0.0], vec![0.0, 1.0]]), 0.5);
    // Silence between two parts says nothing.
    near(coherence(&[at(0.2), vec![0.0, 0.0], at(0.2)]), 1.0);
    assert_eq!(coherence(&[at(0.1)]), None);
    assert_eq!(coherence(&[]), None);
    // The further apart, the less.
    let falling: Vec<f32> = (0..15).map(|i| coherence(&[at(0.0), at(0.1 * i as f32)]).expect("two parts")).collect();
    assert!(falling.is_sorted_by(|a, b| a > b), "{falling:?}");
}

#[test]
fn what_is_said_twice_is_seen() {
    let distinct: Vec<u32> = (0..64).collect();
    near(diversity(&distinct), 1.0);
    let looping = [7; 64];
    // One of 63, of 62, of 61.
    near(diversity(&looping), 1.0 / (63.0 * 62.0 * 61.0));
    assert_eq!(diversity(&[1, 2, 3, 4]), None);
    // Of five pairs one comes twice; triples and fours are distinct.
    near(diversity(&[1, 2, 3, 1, 2, 4]), 4.0 / 5.0);
    // The more of it repeats, the less.
    let falling: Vec<f32> = (1..10)
        .map(|times| {
            let mut tokens: Vec<u32> = (0..64).collect();
            (0..times).for_each(|_| tokens.extend(0..16));
            diversity(&tokens).expect("many runs")
        })
        .collect();
    assert!(falling.is_sorted_by(|a, b| a > b), "{falling:?}");
}

#[test]
fn the_same_question_has_the_same_answer_or_another() {
    let (x, y) = ([1.0, 0.0], [0.0, 1.0]);
    let pair = |question, answer, unix_ms| QuestionAnswer { question, answer, unix_ms };
    let week = HALF_LIFE_MS as u64;
    let now = pair(&x, &x, 10 * week);
    near(consistency(now, [pair(&x, &x, 0)].into_iter()), 1.0);
    near(consistency(now, [pair(&x, &y, 0)].into_iter()), 0.0);
    near(consistency(now, [pair(&x, &x, 0), pair(&x, &y, 0)].into_iter()), 0.5);
    // A week later it counts half.
    near(consistency(now, [pair(&x, &x, week), pair(&x, &y, 0)].into_iter()), 2.0 / 3.0);
    // Other questions say nothing.
    assert_eq!(consistency(now, [pair(&y, &x, 0)].into_iter()), None);
    assert_eq!(consistency(now, std::iter::empty()), None);
    // The nearer the answers, the more consistent.
    let rising: Vec<f32> = (0..15)
        .map(|i| {
            let angle = 1.5 - 0.1 * i as f32;
            let answer = [angle.cos(), angle.sin()];
            consistency(now, [QuestionAnswer { question: &x, answer: &answer, unix_ms: 0 }].into_iter())
                .expect("it was asked")
        })
        .collect();
    assert!(rising.is_sorted_by(|a, b| a < b), "{rising:?}");
}

#[test]
fn what_was_said_before_is_not_new() {
    let of = |range: std::ops::Range<u32>| Grams::of(&range.collect::<Vec<u32>>());
    let answer = of(0..19);
    assert_eq!(uniqueness(&answer, std::iter::empty()), Some(1.0));
    near(uniqueness(&answer, [of(100..200)].iter()), 1.0);
    near(uniqueness(&answer, [of(0..40)].iter()), 0.0);
    // Of sixteen runs the first eight.
    near(uniqueness(&answer, [of(0..11)].iter()), 0.5);
    // The nearest counts.
    near(uniqueness(&answer, [of(0..11), of(0..15), of(50..80)].iter()), 0.25);
    assert_eq!(uniqueness(&Grams::of(&[1, 2, 3]), std::iter::empty()), None);
    let falling: Vec<f32> = (4..19).map(|n| uniqueness(&answer, [of(0..n)].iter()).expect("it has runs")).collect();
    assert!(falling.is_sorted_by(|a, b| a > b), "{falling:?}");
}

#[test]
fn one_number_stands_for_all() {
    let scores = |schema, coherence, diversity| Scores { schema, coherence, diversity, ..Scores::default() };
    assert_eq!(scores(None, None, None).overall(), None);
    assert_eq!(scores(Some(0.5), None, None).overall(), Some(0.5));
    near(scores(None, Some(0.4), Some(0.8)).overall(), 0.6);
    near(scores(Some(0.5), Some(0.4), Some(0.8)).overall(), 0.3);
    // Being new is no merit.
    assert_eq!(Scores { uniqueness: Some(0.0), ..scores(None, None, Some(1.0)) }.overall(), Some(1.0));
}

#[test]
fn a_scorer_remembers_each_tenant_for_itself_and_not_for_ever() {
    let mut scorer = Scorer::new(ScorerOptions { n_answers_max: 2, n_tenants_max: 2, n_tokens_max: 16 });
    let tokens: Vec<Vec<u32>> = (0..8).map(|i| (100 * i..100 * i + 40).collect()).collect();
    let answered = |i: usize| Answered { tokens: &tokens[i], unix_ms: i as u64, ..Answered::default() };
    let mut unique = |tenant: &str, i: usize| scorer.score(tenant, &answered(i)).uniqueness;
    assert_eq!([unique("ann", 0), unique("ann", 0)], [Some(1.0), Some(0.0)]);
    assert_eq!(unique("bob", 0), Some(1.0), "what ann was told is not bob's");
    assert_eq!([unique("ann", 1), unique("ann", 2), unique("ann", 0)], [Some(1.0); 3], "two answers are kept");
    // A third tenant makes bob go, who was silent the longest.
    assert_eq!([unique("eve", 3), unique("bob", 0)], [Some(1.0); 2]);
    scorer.forget("bob");
    assert_eq!(scorer.score("bob", &answered(0)).uniqueness, Some(1.0));
    // Vectors of another width are of another embedder: nothing is compared.
    let wide = Answered { question: &[1.0; 3], answer: &[1.0; 3], ..answered(5) };
    let narrow = Answered { question: &[1.0; 2], answer: &[1.0; 2], ..answered(6) };
    assert_eq!(scorer.score("bob", &wide).consistency, None);
    assert_eq!(scorer.score("bob", &narrow).consistency, None);
    assert_eq!(scorer.score("bob", &narrow).consistency, Some(1.0));
}

proptest! {
    #[test]
    fn scores_stay_between_0_and_1(
        tokens in prop::collection::vec(0u32..9, 0..60),
        parts in prop::collection::vec(prop::collection::vec(-1.0f32..1.0, 4), 0..6),
        (n_valid, n_tokens, is_complete) in (0usize..50, 0usize..50, any::<bool>()),
    ) {
        let mut scorer = Scorer::new(ScorerOptions::default());
        let (question, answer) = ([1.0, 0.5, 0.0, 0.0], parts.first().cloned().unwrap_or(vec![0.0; 4]));
        let checked = Some(Checked { n_valid, n_tokens, is_complete });
        let answered = Answered { question: &question, answer: &answer, parts: &parts, tokens: &tokens, checked, unix_ms: 5 };
        for _ in 0..2 {
            let scores = scorer.score("t", &answered);
            let all = scores.named().into_iter().filter_map(|(_, score)| score).chain(scores.overall());
            prop_assert!(all.into_iter().all(|score| (0.0..=1.0).contains(&score)), "{scores:?}");
        }
    }
}
