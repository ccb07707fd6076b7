//! One row of every kernel table and the thread pool: what a forward pass computes with.

use std::sync::Arc;

use ruvllm_kernels::{Isa, activation, attention, dequant, lowrank, matmul, norm, rope, softmax};
use ruvllm_threads::ThreadPool;

/// The kernels chosen for one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Kernels {
    pub activation: &'static activation::Table,
    pub attention: &'static attention::Table,
    pub dequant: &'static dequant::Table,
    pub lowrank: &'static lowrank::Table,
    pub matmul: &'static matmul::Table,
    pub norm: &'static norm::Table,
    pub rope: &'static rope::Table,
    pub softmax: &'static softmax::Table,
}

impl Kernels {
    /// Picks the best row of each table that needs no more than `isa`.
    pub(crate) fn pick(isa: Isa) -> Kernels {
        Kernels {
            activation: activation::pick(isa),
            attention: attention::pick(isa),
            dequant: dequant::pick(isa),
            lowrank: lowrank::pick(isa),
            matmul: matmul::pick(isa),
            norm: norm::pick(isa),
            rope: rope::pick(isa),
            softmax: softmax::pick(isa),
        }
    }
}

/// Kernels and the threads that run them; clones share those.
#[derive(Clone)]
pub(crate) struct Compute {
    pub isa: Isa,
    pub kernels: Kernels,
    pub threads: Arc<ThreadPool>,
}

impl Compute {
    pub(crate) fn new(isa: Isa, n_threads: usize) -> Compute {
        Compute { isa, kernels: Kernels::pick(isa), threads: Arc::new(ThreadPool::new(n_threads)) }
    }
}
