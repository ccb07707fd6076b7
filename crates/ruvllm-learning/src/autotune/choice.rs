//! Choices of the autotuner, and the numbers in which the scheduler carries them.

use ruvllm_engine::tuner::Choice;
use ruvllm_sona::policy::bandit::Why;

/// The reasons of a bandit, by their numbers.
const WHYS: [Why; 4] = [Why::Default, Why::Trying, Why::Learned, Why::Recheck];
/// The numbers of other reasons.
const OPERATOR: u16 = 0x100;
const BOUND: u16 = 0x101;
/// The first number of hundredths that are saved.
const REUSE: u16 = 0x200;

/// What was chosen for a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepChoice {
    /// The workload's place.
    pub context: u8,
    pub arm: u8,
    /// `None`: the operator says so.
    pub why: Option<Why>,
}

/// What was chosen for a request's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KvChoice {
    /// Place of the workload.
    pub context: u8,
    pub arm: u8,
    pub who: Who,
}

/// Who chose how keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// The operator.
    Operator,
    /// What windows of steps cost.
    Measured(Why),
    /// What is cached of its beginning is kept so.
    Bound,
    /// Prompts that come again stay cached, which saves so many hundredths of the time.
    Reuse(u8),
}

impl Who {
    /// Returns whether what its steps cost is compared.
    pub(super) fn is_measured(self) -> bool {
        matches!(self, Who::Measured(_) | Who::Bound)
    }
}

fn number_of(why: Why) -> u16 {
    WHYS.iter().position(|known| *known == why).map_or(OPERATOR, |at| at as u16)
}

fn why_of(number: u16) -> Option<Why> {
    WHYS.get(usize::from(number)).copied()
}

impl From<StepChoice> for Choice {
    fn from(StepChoice { context, arm, why }: StepChoice) -> Choice {
        Choice { workload: context, way: arm, why: why.map_or(OPERATOR, number_of) }
    }
}

impl From<Choice> for StepChoice {
    fn from(Choice { workload, way, why }: Choice) -> StepChoice {
        StepChoice { context: workload, arm: way, why: why_of(why) }
    }
}

impl From<KvChoice> for Choice {
    fn from(KvChoice { context, arm, who }: KvChoice) -> Choice {
        let why = match who {
            Who::Operator => OPERATOR,
            Who::Measured(why) => number_of(why),
            Who::Bound => BOUND,
            Who::Reuse(share) => REUSE + u16::from(share),
        };
        Choice { workload: context, way: arm, why }
    }
}

impl From<Choice> for KvChoice {
    fn from(Choice { workload, way, why }: Choice) -> KvChoice {
        let who = match (why_of(why), why) {
            (Some(why), _) => Who::Measured(why),
            (None, BOUND) => Who::Bound,
            (None, REUSE..) => Who::Reuse((why - REUSE) as u8),
            (None, _) => Who::Operator,
        };
        KvChoice { context: workload, arm: way, who }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_come_back_from_their_numbers() {
        for why in WHYS.into_iter().map(Some).chain([None]) {
            let choice = StepChoice { context: 63, arm: 2, why };
            assert_eq!(StepChoice::from(Choice::from(choice)), choice);
        }
        let others = [Who::Operator, Who::Bound, Who::Reuse(0), Who::Reuse(100), Who::Reuse(u8::MAX)];
        for who in WHYS.into_iter().map(Who::Measured).chain(others) {
            let choice = KvChoice { context: 1, arm: 3, who };
            assert_eq!(KvChoice::from(Choice::from(choice)), choice);
        }
    }
}
