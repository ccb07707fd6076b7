//! Adapters on the device: one bank holds the factors of those that were used lately, and each row names its own.
//!
//! The bank is made when the first request with an adapter comes, and grows up to one binding. When there is no room, it is made
//! anew with what the call at hand needs. A plan with the low-rank products is made of the layers that adapters in the bank change.

use std::sync::Arc;

use half::f16;
use ruvllm_backend::{BackendError, BackendErrorKind};
use ruvllm_gpu::{Gpu, GpuBuffer, GpuErrorKind};
use ruvllm_lora::{AdapterSet, BoundAdapter, FactorFormat, LayerFactors, LayerSizes};
use ruvllm_shaders::{ADAPTERS_MAX, LOW_RANK_F32, LOW_RANK_GAIN, LOW_RANK_PLACE_WORDS, NO_ADAPTER, low_rank_words};

use crate::error::failed;
use crate::steps::AdapterSteps;

const _: () = assert!(ADAPTERS_MAX >= ruvllm_lora::SET_MAX);

/// Places of adapters in a new bank.
const PLACES: usize = 16;

/// Words of a row's members: number and strength of each.
const MEMBER_WORDS: usize = 2 * ADAPTERS_MAX;

/// Sizes of a model and of its passes, which decide how large a bank's buffers are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BankLimits {
    /// Linear layers of the model.
    pub n_layers: usize,
    /// Rows of a pass, and rows that give logits.
    pub n_rows: usize,
    pub n_outputs: usize,
    /// Most slots of a row: experts, or heads with matrices of their own.
    pub n_slots: usize,
    /// Most outputs of a product that is added to others.
    pub n_added: usize,
}

/// Adapters of a call.
#[derive(Clone, Default)]
pub(crate) struct WantedAdapters {
    all: Vec<Arc<BoundAdapter>>,
    /// Largest sum of the ranks of a row's adapters.
    t_len: usize,
}

/// Content and format of an adapter: what tells it from others.
type Key = ([u8; 32], FactorFormat);

/// Factors of adapters on the device.
pub(crate) struct AdapterBank {
    bank: GpuBuffer,
    members_of_rows: GpuBuffer,
    members_of_outputs: GpuBuffer,
    t: GpuBuffer,
    added: GpuBuffer,
    /// By an adapter's number, with its largest rank.
    resident: Vec<(Key, usize)>,
    n_places: usize,
    /// Words that are taken.
    end: usize,
    /// By the number of a linear layer, whether a resident adapter changes it.
    touched: Vec<bool>,
    t_len: usize,
}

fn key(adapter: &BoundAdapter) -> Key {
    (adapter.content(), adapter.format())
}

fn layers(adapter: &BoundAdapter) -> impl Iterator<Item = (usize, LayerSizes)> {
    let n = adapter.targets().all().len();
    (0..n).filter_map(|layer| Some((layer, adapter.layer_sizes(layer)?)))
}

/// Returns the largest rank of an adapter's factors.
fn largest_rank(adapter: &BoundAdapter) -> usize {
    layers(adapter).map(|(_, sizes)| sizes.rank).max().unwrap_or(0)
}

/// Returns the words of a layer's factors.
fn layer_words(sizes: LayerSizes, is_f32: bool) -> usize {
    let LayerSizes { rank, n_in, n_out, has_gain } = sizes;
    let gain = if has_gain { n_out } else { 0 };
    rank * (1 + low_rank_words(n_in, is_f32) + low_rank_words(n_out, is_f32)) + gain
}

/// Returns the words of an adapter's factors.
pub(crate) fn adapter_words(adapter: &BoundAdapter) -> usize {
    let is_f32 = adapter.format() == FactorFormat::F32;
    layers(adapter).map(|(_, sizes)| layer_words(sizes, is_f32)).sum()
}

impl WantedAdapters {
    /// Adds the adapters of a sequence.
    pub(crate) fn add(&mut self, set: &AdapterSet) {
        self.t_len = self.t_len.max(set.iter().map(|(adapter, _)| largest_rank(adapter)).sum());
        for (adapter, _) in set.iter() {
            if self.all.iter().all(|other| key(other) != key(adapter)) {
                self.all.push(Arc::clone(adapter));
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn n_words(&self) -> usize {
        self.all.iter().map(|adapter| adapter_words(adapter)).sum()
    }

    /// Returns places and words of a bank that holds these alone.
    fn least(&self, n_layers: usize) -> (usize, usize) {
        let n_places = self.all.len().next_multiple_of(PLACES);
        (n_places, n_places * n_layers * LOW_RANK_PLACE_WORDS + self.n_words())
    }

    /// Checks that a bank can hold these.
    ///
    /// # Errors
    /// One line: they are larger than a binding.
    pub(crate) fn check(&self, gpu: &Gpu, limits: BankLimits) -> Result<(), BackendError> {
        let words_max = gpu.info().binding_bytes_max / 4;
        let t_words = limits.n_rows * limits.n_slots * self.t_len;
        let n_words = self.least(limits.n_layers).1.max(t_words) as u64;
        if n_words <= words_max {
            return Ok(());
        }
        let line = format!(
            "backend gpu: the adapters of a request take {} bytes, a binding of {} has {}; use fewer or smaller ones, or native",
            4 * n_words,
            gpu.info().name,
            4 * words_max
        );
        Err(BackendError::new(BackendErrorKind::Adapter, line))
    }
}

impl AdapterBank {
    /// Makes an empty bank that has room for `wanted`, and for others beside where there is memory.
    ///
    /// # Errors
    /// The device's memory is used up, or the device is lost.
    pub(crate) fn new(gpu: &Gpu, limits: BankLimits, wanted: &WantedAdapters) -> Result<AdapterBank, BackendError> {
        let (n_places, least) = wanted.least(limits.n_layers);
        let words_max = usize::try_from(gpu.info().binding_bytes_max / 4).unwrap_or(usize::MAX);
        let buffer = |name: &str, n_words: usize| gpu.buffer(name, n_words).map_err(failed);
        let roomy = least.saturating_add(wanted.n_words()).min(words_max);
        let bank = match gpu.buffer("adapters", roomy) {
            Err(error) if error.kind() == GpuErrorKind::OutOfMemory => buffer("adapters", least),
            made => made.map_err(failed),
        }?;
        Ok(AdapterBank {
            bank,
            members_of_rows: buffer("adapters of rows", limits.n_rows * MEMBER_WORDS)?,
            members_of_outputs: buffer("adapters of wanted rows", limits.n_outputs.max(1) * MEMBER_WORDS)?,
            t: buffer("low-rank products", limits.n_rows * limits.n_slots * wanted.t_len)?,
            added: buffer("products that adapters change", limits.n_rows * limits.n_added)?,
            resident: Vec::new(),
            n_places,
            end: n_places * limits.n_layers * LOW_RANK_PLACE_WORDS,
            touched: vec![false; limits.n_layers],
            t_len: wanted.t_len,
        })
    }

    /// Returns whether all of `wanted` are here, or fit beside what is.
    pub(crate) fn has_room(&self, wanted: &WantedAdapters) -> bool {
        let new: Vec<_> = wanted.all.iter().filter(|adapter| self.number(adapter).is_none()).collect();
        let n_words: usize = new.iter().map(|adapter| adapter_words(adapter)).sum();
        self.resident.len() + new.len() <= self.n_places
            && self.end + n_words <= self.bank.n_words()
            && wanted.t_len <= self.t_len
    }

    /// Uploads those of `wanted` that are not here yet, for which there is room. Returns whether they change layers that nothing
    /// here changed.
    ///
    /// # Errors
    /// The device is lost.
    pub(crate) fn upload(&mut self, gpu: &Gpu, wanted: &WantedAdapters) -> Result<bool, BackendError> {
        let mut changes_more = false;
        for adapter in &wanted.all {
            if self.number(adapter).is_some() {
                continue;
            }
            let (n_layers, first) = (self.touched.len(), self.end);
            let mut places = vec![0; n_layers * LOW_RANK_PLACE_WORDS];
            let is_f32 = adapter.format() == FactorFormat::F32;
            for (layer, sizes) in layers(adapter) {
                let factors = adapter.layer_factors(layer).expect("it changes the layer");
                let words = factor_words(&factors, sizes, is_f32);
                gpu.write(&self.bank, self.end, &words).map_err(failed)?;
                let flags = u32::from(is_f32) * LOW_RANK_F32 + u32::from(sizes.has_gain) * LOW_RANK_GAIN;
                let place = &mut places[layer * LOW_RANK_PLACE_WORDS..][..3];
                place.copy_from_slice(&[self.end as u32, sizes.rank as u32, flags]);
                self.end += words.len();
                changes_more |= !std::mem::replace(&mut self.touched[layer], true);
            }
            debug_assert_eq!(self.end - first, adapter_words(adapter));
            gpu.write(&self.bank, self.resident.len() * places.len(), &places).map_err(failed)?;
            self.resident.push((key(adapter), largest_rank(adapter)));
        }
        Ok(changes_more)
    }

    /// Returns the number of an adapter, if it is here.
    fn number(&self, adapter: &BoundAdapter) -> Option<u32> {
        self.resident.iter().position(|(other, _)| *other == key(adapter)).map(|number| number as u32)
    }

    /// Returns whether the adapters of a sequence are all here, with room for their products.
    pub(crate) fn holds(&self, set: &AdapterSet) -> bool {
        let ranks = set.iter().map(|(adapter, _)| Some(self.resident[self.number(adapter)? as usize].1));
        ranks.sum::<Option<usize>>().is_some_and(|sum| sum <= self.t_len)
    }

    /// Appends the members of rows with a set, whose gate said `weights`: `[n, n_adapters]`, or nothing without a gate.
    pub(crate) fn push_members(&self, set: &AdapterSet, n_rows: usize, weights: &[f32], members: &mut Vec<u32>) {
        let n_adapters = weights.len() / n_rows;
        for row in 0..n_rows {
            let end = members.len() + MEMBER_WORDS;
            for (i, (adapter, scale)) in set.iter().enumerate() {
                let weight = weights.get(row * n_adapters + i).copied().unwrap_or(1.0);
                members.extend([self.number(adapter).unwrap_or(NO_ADAPTER), (scale * weight).to_bits()]);
            }
            members.resize(end, NO_ADAPTER);
        }
    }

    /// Writes the adapters of the rows of a pass.
    pub(crate) fn write_rows(&self, gpu: &Gpu, members: &[u32]) -> Result<(), BackendError> {
        gpu.write(&self.members_of_rows, 0, members).map_err(failed)
    }

    /// Writes the adapters of rows that give logits: those of the rows `wanted` of a pass.
    pub(crate) fn write_outputs(&self, gpu: &Gpu, members: &[u32], wanted: &[u32]) -> Result<(), BackendError> {
        let of_row = |row: &u32| &members[*row as usize * MEMBER_WORDS..][..MEMBER_WORDS];
        let words: Vec<u32> = wanted.iter().flat_map(of_row).copied().collect();
        gpu.write(&self.members_of_outputs, 0, &words).map_err(failed)
    }

    /// Returns what dispatches over the rows of a pass name, or those over its wanted rows.
    pub(crate) fn steps(&self, is_of_outputs: bool) -> AdapterSteps<'_> {
        AdapterSteps {
            bank: &self.bank,
            members: if is_of_outputs { &self.members_of_outputs } else { &self.members_of_rows },
            t: &self.t,
            added: &self.added,
            touched: &self.touched,
            t_len: self.t_len,
        }
    }
}

/// Returns a layer's factors as they lie on the device.
fn factor_words(factors: &LayerFactors, sizes: LayerSizes, is_f32: bool) -> Vec<u32> {
    let mut words = Vec::with_capacity(layer_words(sizes, is_f32));
    words.extend(factors.multipliers.iter().map(|x| x.to_bits()));
    for (factor, n) in [(&factors.a, sizes.n_in), (&factors.b, sizes.n_out)] {
        for row in factor.chunks_exact(n) {
            match is_f32 {
                true => words.extend(row.iter().map(|x| x.to_bits())),
                false => words.extend(row.chunks(2).map(|two| {
                    let bits = |i: usize| u32::from(two.get(i).map_or(0, |x| f16::from_f32(*x).to_bits()));
                    bits(0) | bits(1) << 16
                })),
            }
        }
    }
    words.extend(factors.gain.iter().flatten().map(|x| x.to_bits()));
    words
}
