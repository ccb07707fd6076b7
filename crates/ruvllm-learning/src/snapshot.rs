//! Snapshots: all that a tenant has learned as bytes, to be kept elsewhere or taken to another machine with the same model.

use std::sync::Arc;

use ruvllm_engine::{EngineError, ErrorKind};
use ruvllm_sona::Learned;

use crate::tenant::TenantLearning;

/// First bytes of a snapshot.
const MAGIC: &[u8; 8] = b"ruvlrnd1";

impl TenantLearning {
    /// Returns everything that is known as bytes, for [`TenantLearning::restore`] with the same model. Answers that wait to be judged are no
    /// part of it.
    pub fn snapshot(&self) -> Vec<u8> {
        self.settle();
        [MAGIC, &self.shared.identity[..], &self.learned().snapshot()].concat()
    }

    /// Puts what [`TenantLearning::snapshot`] gave in the place of what is known; a tenant that is kept begins a new generation with it.
    ///
    /// # Errors
    /// The bytes are damaged, of another version or of another model; they cannot be written.
    pub fn restore(&self, bytes: &[u8]) -> Result<(), EngineError> {
        let learning = |line: String| EngineError::new(ErrorKind::Learning, line);
        let of_model = bytes.strip_prefix(MAGIC).and_then(|rest| rest.split_first_chunk::<32>());
        let (model, snapshot) = of_model
            .ok_or_else(|| learning("these bytes are no snapshot of what was learned; export it again".into()))?;
        if *model != self.shared.identity {
            return Err(learning("it was learned with another model; load that one, or learn with this one".into()));
        }
        let shared = &self.shared;
        let learned =
            Learned::restore(snapshot, Arc::clone(&shared.calibration), shared.options.learn, shared.compute.clone());
        let learned = learned.map_err(|error| learning(format!("the snapshot cannot be read: {error}")))?;
        self.replace(learned, "restored from a snapshot")
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use ruvllm_engine::{Engine, GenerateRequest, LoadOptions, SamplingParams};
    use ruvllm_testkit::Golden;

    use crate::{Correctness, Learning, LearningOptions, Question, Task, add_correction};

    fn opened(model: &str) -> (Engine, Learning) {
        let path = Golden::load(model).model("f32");
        let mut engine = Engine::load(&path, &LoadOptions::default(), &mut |_| {}).expect("it loads");
        let learning = Learning::open(&mut engine, LearningOptions::default(), &mut |_| ControlFlow::Continue(()));
        let learning = learning.expect("it is calibrated");
        (engine, learning)
    }

    #[test]
    fn a_snapshot_is_known_where_it_is_restored() {
        let (mut engine, learning) = opened("llama-a");
        let (tenant, other) = (learning.transient().expect("a tenant"), learning.transient().expect("a tenant"));
        let (text, answer) = ("Where is Ulm?", [11, 22, 33, 44]);
        let prompt = engine.encode_prompt(text, true).expect("a text");
        let question = Question { prompt: &prompt, text: Some(text) };
        add_correction(&mut engine, &tenant, question, &answer, Correctness::Right).expect("it is taken");
        let bytes = tenant.snapshot();
        other.restore(&bytes).expect("the same model");
        assert_eq!((other.digest(), other.snapshot()), (tenant.digest(), bytes.clone()));
        let logits_processor = Some(other.logits_processor(Task::of(text), None));
        let (max_tokens, sampling) = (Some(answer.len()), SamplingParams::greedy());
        let request = GenerateRequest { prompt, logits_processor, max_tokens, sampling, ..Default::default() };
        let tokens = engine.generate(&request).expect("it runs").for_each_token(|_| {}).expect("it ends").tokens;
        assert_eq!(tokens, answer);

        // The answer is taken note of on a thread of its own.
        other.settle();
        let known = other.digest();
        let line = |bytes: &[u8]| other.restore(bytes).expect_err("refused").to_string();
        assert_eq!(line(b"ruvlrnd2"), "these bytes are no snapshot of what was learned; export it again");
        assert!(line(&bytes[..bytes.len() - 1]).starts_with("the snapshot cannot be read: "));
        let mut foreign = bytes;
        foreign[8] ^= 1;
        assert_eq!(line(&foreign), "it was learned with another model; load that one, or learn with this one");
        assert_eq!(other.digest(), known, "what was refused changes nothing");
    }
}
