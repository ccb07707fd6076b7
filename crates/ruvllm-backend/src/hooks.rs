//! Forward hooks: observing the inputs of matrix products, and computing with other weights, as calibration asks for.

use std::sync::Arc;

use ruvllm_gguf::GgmlType;

use crate::BackendError;

/// Observer of the inputs of matrix products.
pub trait InputObserver: Send + Sync {
    /// Receives rows `x`, `[n, n_in]`, that the linear layer of this number
    /// ([`LinearSpec::id`](ruvllm_model::LinearSpec::id)) is about to be multiplied with. Every product calls it once for all of
    /// its rows, or several times for some of them.
    fn input(&self, linear: usize, x: &[f32]);
}

/// Hooks into the forward passes of a model. Without an observer and other weights passes are as if there were no hooks.
pub trait ForwardHooks {
    /// Sets the observer of all products, or takes it away. Results stay the same bits.
    fn set_input_observer(&mut self, observer: Option<Arc<dyn InputObserver>>);

    /// Computes with other weights in the place of a tensor of the file, until [`ForwardHooks::restore_weights`]. They have its
    /// shape, in rows of whole blocks of their type.
    ///
    /// # Errors
    /// The model multiplies with no tensor of this name, or the weights have another size or a type that is not multiplied with.
    fn replace_weights(&mut self, tensor: &str, ty: GgmlType, weights: Vec<u8>) -> Result<(), BackendError>;

    /// Computes with the file's weights again.
    fn restore_weights(&mut self);
}
