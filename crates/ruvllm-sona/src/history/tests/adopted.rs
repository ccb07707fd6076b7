//! What the gate decides, and adapters of the deep loop.

use super::*;
use crate::deep::DeepState;
use crate::publish::{Judgement, LossChange};

/// A model whose adapter is three numbers that it does not use.
pub(super) struct Deep(pub(super) f32);

impl crate::deep::DeepModel for Deep {
    fn fresh(&mut self) -> Result<Vec<Vec<f32>>, SonaError> {
        Ok(vec![vec![self.0; 3]])
    }

    fn train(
        &mut self,
        _: &Vec<Vec<f32>>,
        _: &[crate::deep::TrainingSequence],
        _: f64,
        _: &mut crate::deep::Penalty<'_>,
    ) -> Result<Vec<Vec<f32>>, SonaError> {
        self.fresh()
    }

    fn gradients(
        &mut self,
        _: &Vec<Vec<f32>>,
        _: &[crate::deep::TrainingSequence],
        _: &mut dyn FnMut(&[Vec<f32>]),
    ) -> Result<(), SonaError> {
        Ok(())
    }

    fn losses(
        &mut self,
        _: &Vec<Vec<f32>>,
        sequences: &[crate::deep::TrainingSequence],
    ) -> Result<Vec<f64>, SonaError> {
        Ok(vec![1.0; sequences.len()])
    }
}

pub(super) fn judgement(is_published: bool) -> Judgement {
    let target = LossChange { name: "target".into(), relative: -0.1, bound: -0.05, n_blocks: 9 };
    Judgement { is_published, why: "as it is".into(), target, controls: Vec::new() }
}

#[test]
fn what_the_gate_discards_goes_and_corrections_stay() {
    let mut place = Place::new();
    let mut history = place.open("a");
    let names = Names::of("What is the capital of Zorbia?");
    Request::new(1).end(&place.toy, &mut history).expect("learned");
    assert_eq!(history.decide(&judgement(true), &mut place.toy).expect("a store"), Some(1));
    let published = history.state();
    Request::new(2).end(&place.toy, &mut history).expect("learned");
    history.add_correction(&names, &state(3), &[7], Correctness::Right).expect("an answer");
    Request::new(3).end(&place.toy, &mut history).expect("learned");
    assert_eq!(history.decide(&judgement(false), &mut place.toy).expect("a store"), None);
    assert!(history.state() != published && history.learned().corrections().len() == 1);
    let newest = &history.items(u64::MAX, 1).expect("a store")[0].2;
    assert!(matches!(newest, Item::Discarded { figures, .. } if figures.len() == 2), "{newest:?}");
    history.rollback(1, &mut place.toy).expect("kept");
    assert!(history.state() == published);
}

#[test]
fn adapters_go_with_what_they_were_trained_on() {
    let mut place = Place::new();
    let mut history = place.open("a");
    let deep = |x: f32| DeepState::new(&mut Deep(x), &crate::deep::DeepOptions::default()).expect("options");
    let a = Request::new(1).end(&place.toy, &mut history).expect("learned");
    let b = Request::new(2).end(&place.toy, &mut history).expect("learned");
    let none = history.state();
    let first = history.adopt(&deep(1.0), &[a], &judgement(true), &mut place.toy).expect("a store");
    assert!(history.state() != none && history.adopted().expect("a store") == Some(deep(1.0)));
    let with_first = history.state();
    let second = history.adopt(&deep(2.0), &[b], &judgement(true), &mut place.toy).expect("a store");
    assert_eq!(place.toy.adopted, Some(deep(2.0).snapshot()));
    assert!(place.open("a").adopted().expect("a store") == Some(deep(2.0)));
    history.rollback(first, &mut place.toy).expect("kept");
    assert!(history.state() == with_first && place.toy.adopted == Some(deep(1.0).snapshot()));
    history.rollback(second, &mut place.toy).expect("kept");
    // The second was trained on `b`; without it the first is served again. `a` takes both, since the second began with the first.
    let mut never = place.open("b");
    Request::new(1).end(&place.toy, &mut never).expect("learned");
    let only_a = never.state();
    history.undo(b, &mut place.toy).expect("an item");
    assert!(history.adopted().expect("a store") == Some(deep(1.0)) && history.state() != only_a);
    history.undo(a, &mut place.toy).expect("an item");
    assert!(history.adopted().expect("a store").is_none() && place.toy.adopted.is_none());
    assert!(history.state() == place.open("nobody").state());
    assert!(place.store.snapshot().expect("a store").scopes(ADAPTERS).expect("a store").is_empty());
}
