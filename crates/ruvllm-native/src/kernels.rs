//! One row of every kernel table and the thread pool: what a forward pass computes with.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use ruvllm_backend::InputObserver;
use ruvllm_cpu::ThreadPool;
use ruvllm_kernels::activation::{self, ActivationKernels};
use ruvllm_kernels::attention::{self, AttentionKernels};
use ruvllm_kernels::dequant::{self, DequantKernels};
use ruvllm_kernels::lowrank::{self, LowRankKernels};
use ruvllm_kernels::matmul::{self, MatmulKernels, Matrix};
use ruvllm_kernels::norm::{self, NormKernels};
use ruvllm_kernels::rope::{self, RopeKernels};
use ruvllm_kernels::softmax::{self, SoftmaxKernels};
use ruvllm_kernels::{GgmlType, Isa};

/// The kernels chosen for one instruction set.
#[derive(Clone, Copy)]
pub(crate) struct Kernels {
    pub activation: &'static ActivationKernels,
    pub attention: &'static AttentionKernels,
    pub dequant: &'static DequantKernels,
    pub lowrank: &'static LowRankKernels,
    pub matmul: &'static MatmulKernels,
    pub norm: &'static NormKernels,
    pub rope: &'static RopeKernels,
    pub softmax: &'static SoftmaxKernels,
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
    /// Hooks of calibration; none in ordinary use.
    pub hooks: Option<Arc<Hooks>>,
}

/// An observer of products and weights in the place of others.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    pub observer: Option<Arc<dyn InputObserver>>,
    /// Matrices in the place of the model's, by the number of their linear layer.
    pub matrices: HashMap<usize, Matrix>,
    /// Token embeddings in the place of the model's.
    pub tokens: Option<(GgmlType, Bytes)>,
}

impl Compute {
    pub(crate) fn new(isa: Isa, n_threads: usize) -> Compute {
        Compute { isa, kernels: Kernels::pick(isa), threads: Arc::new(ThreadPool::new(n_threads)), hooks: None }
    }

    /// Tells the observer, if there is one, what a linear layer is about to be multiplied with.
    pub(crate) fn observe(&self, linear: usize, x: &[f32]) {
        if let Some(observer) = self.hooks.as_ref().and_then(|hooks| hooks.observer.as_ref()) {
            observer.input(linear, x);
        }
    }
}
