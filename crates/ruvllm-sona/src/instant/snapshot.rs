//! Learned state as bytes.

use std::sync::Arc;

use ruvllm_kernels::Compute;
use ruvllm_lora::micro::MicroLora;

use super::{Base, LearnOptions, Learned, MOVES_MAX, completed};
use crate::calibration::Calibration;
use crate::codec::{Reader, Writer};
use crate::corrections::Corrections;
use crate::datastore::{Context, Datastore};
use crate::error::{SonaError, SonaErrorKind};
use crate::ewc::Ewc;
use crate::interpolation::{Interpolation, RunningFeatures};
use crate::mixing_weight::MixingWeight;

/// What a snapshot begins with.
const MAGIC: [u8; 8] = *b"ruvlear5";

impl Learned {
    /// Returns everything that was learned as bytes; the calibration, which belongs to the model, is not among them.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Writer::of(MAGIC);
        for value in [self.n_tokens, self.n_owed, self.cursor as u64, self.context.bits()] {
            out.u64(value);
        }
        out.plain_f32s(&self.running.values());
        out.plain_f32s(&[self.mixing_weight.value()]);
        out.part(&self.datastore.snapshot());
        out.part(&self.corrections.snapshot());
        out.part(&self.interpolation.snapshot());
        out.part(&self.micro.as_ref().map(|micro| micro.snapshot()).unwrap_or_default());
        out.part(&self.base.as_ref().map(|base| base.lora.snapshot()).unwrap_or_default());
        out.part(&self.base.as_ref().map(|base| base.ewc.snapshot()).unwrap_or_default());
        out.take()
    }

    /// Reads what [`Learned::snapshot`] gave: it goes on to the bit as that would have.
    ///
    /// # Errors
    /// The bytes are damaged, or were learned with another model or other options.
    pub fn restore(
        bytes: &[u8],
        calibration: Arc<Calibration>,
        options: LearnOptions,
        compute: impl Into<Compute>,
    ) -> Result<Learned, SonaError> {
        let mut learned = Learned::new(calibration, options, compute)?;
        let mut from = Reader::of(bytes, MAGIC, "learned state")?;
        (learned.n_tokens, learned.n_owed) = (from.u64()?, from.u64()?);
        learned.cursor = from.number(learned.calibration.len())?;
        learned.context = Context::from_bits(from.u64()?);
        let running = from.plain_f32s(2)?;
        learned.running = RunningFeatures::from_values([running[0], running[1]]);
        learned.mixing_weight = MixingWeight::from_value(from.plain_f32s(1)?[0]);
        let datastore = Datastore::restore(from.part()?)?;
        let corrections = Corrections::restore(from.part()?)?;
        let interpolation = Interpolation::restore(from.part()?)?;
        let micro = from.part()?;
        let micro = match micro.is_empty() {
            true => None,
            false => Some(Arc::new(completed(&learned.calibration, MicroLora::restore(micro)?)?)),
        };
        let (lora, ewc) = (from.part()?, from.part()?);
        if !lora.is_empty() {
            learned.base = Some(Base { lora: MicroLora::restore(lora)?.within(MOVES_MAX)?, ewc: Ewc::restore(ewc)? });
        }
        from.end()?;
        let shape = |micro: &Option<Arc<MicroLora>>| {
            micro.as_ref().map(|micro| (micro.n_embd(), micro.rank(), micro.values().count()))
        };
        let fits = datastore.n_key() == learned.datastore.n_key() && datastore.options() == learned.datastore.options();
        let fits = fits && corrections.n_key() == datastore.n_key();
        if !fits || shape(&micro) != shape(&learned.micro) {
            let line = "what was learned is of another model or of other options; give those it was learned with";
            return Err(SonaError::new(SonaErrorKind::Shape, line));
        }
        (learned.datastore, learned.corrections, learned.interpolation, learned.micro) =
            (datastore, corrections, interpolation, micro);
        learned.serve()?;
        Ok(learned)
    }
}
