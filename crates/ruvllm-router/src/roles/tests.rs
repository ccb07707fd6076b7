//! The set is sound, and a classifier learns from it, abstains, and is saved.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::error::RouterErrorKind;
use crate::evaluate::wilson;

fn embeddings_of(examples: &[RoleExample]) -> Rows {
    let mut rows = Rows::new(256);
    examples.iter().for_each(|example| rows.push(&HashedWords::new(256).vector(&example.prompt)).unwrap());
    rows
}

#[test]
fn the_set_is_what_the_docs_say() {
    let examples = examples();
    let mut counts: BTreeMap<(Role, &str), usize> = BTreeMap::new();
    examples.iter().for_each(|example| *counts.entry((example.role, &example.group)).or_default() += 1);
    assert_eq!(counts.len(), 12 * N_ROLES);
    assert!(counts.values().all(|&n| n == 5), "{counts:?}");
    let distinct: BTreeSet<String> = examples.iter().map(|example| example.prompt.to_lowercase()).collect();
    assert_eq!(distinct.len(), 780);
    assert!(examples.iter().all(|example| !example.also.contains(&example.role)));
    assert!(examples.iter().any(|example| !example.also.is_empty()));
    let lengths: Vec<usize> = examples.iter().map(|example| example.prompt.split_whitespace().count()).collect();
    assert!(lengths.iter().any(|&n| n <= 5) && lengths.iter().any(|&n| n >= 25), "lengths vary");
}

#[test]
fn names_and_order_agree() {
    for (i, role) in Role::all().enumerate() {
        assert_eq!((role.index(), Role::from_name(role.name())), (i, Some(role)));
    }
    assert_eq!(Role::from_name("poet"), None);
}

/// Two topics left out; even without a model far more is right than the 1 in 13 of guessing, and what is answered with
/// abstention is right more often.
#[test]
fn roles_of_unseen_topics_are_found() {
    let (test, learned): (Vec<_>, Vec<_>) =
        examples().into_iter().partition(|example| ["payments", "ml"].contains(&example.group.as_str()));
    let classifier = RoleClassifier::train(&learned, &embeddings_of(&learned), &RoleOptions::default()).unwrap();
    let (mut right, mut answered, mut sure) = (0, 0, 0);
    for (example, embedding) in test.iter().zip(embeddings_of(&test).iter()) {
        let verdict = classifier.classify(&example.prompt, embedding).unwrap();
        assert!((verdict.ranked.iter().map(|(_, share)| share).sum::<f32>() - 1.0).abs() < 1e-4);
        let is_right = verdict.ranked[0].0 == example.role;
        right += usize::from(is_right);
        answered += usize::from(verdict.role.is_some());
        sure += usize::from(verdict.role.is_some() && is_right);
    }
    assert!(wilson(right, test.len()).0 > 0.35, "{right} of {}", test.len());
    assert!(answered < test.len(), "it abstains sometimes");
    assert!(sure * test.len() > right * answered, "{sure} of {answered} against {right} of {}", test.len());

    let read = RoleClassifier::from_bytes(&classifier.to_bytes()).unwrap();
    assert_eq!(read, classifier);
    assert_eq!(read.classify("a", &[0.0; 3]).unwrap_err().kind(), RouterErrorKind::Shape);
}

#[test]
fn lines_that_are_no_examples_are_named() {
    let check = |text: &str| read_examples(text).unwrap_err().to_string();
    assert!(
        check("{\"group\":\"a\",\"role\":\"coder\",\"prompt\":\"x\"}\n\n{\"role\":\"poet\"}")
            .starts_with("line 3 is not")
    );
    assert!(check("[]").starts_with("line 1 is not"));
    assert!(read_examples("{\"group\":\"a\",\"role\":\"coder\",\"also\":[\"poet\"],\"prompt\":\"x\"}").is_err());
}
