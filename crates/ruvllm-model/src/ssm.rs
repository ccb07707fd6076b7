//! Selective state spaces: the sizes that files give, within bounds, and the blocks that are made of them.

use crate::builder::{Builder, Part};
use crate::spec::{ConvSpec, LinearSpec, Mamba2Spec, MambaSpec, NormKind, NormSpec};
use crate::{ModelError, TensorRows};

/// The most values of a channel's state in a state space: more are taken for damage. Models have 16 to 256.
pub const STATE_MAX: usize = 4096;

/// What `{arch}.ssm.*` says.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    n_inner: usize,
    n_state: usize,
    n_taps: usize,
    /// Of Mamba the values that steps are made of, of Mamba 2 the heads.
    rank: usize,
}

impl Builder<'_> {
    fn ssm_sizes(&self) -> Result<Sizes, ModelError> {
        let sizes = Sizes {
            n_inner: self.keys.need_count("ssm.inner_size")?,
            n_state: self.keys.need_count("ssm.state_size")?,
            n_taps: self.keys.need_count("ssm.conv_kernel")?,
            rank: self.keys.need_count("ssm.time_step_rank")?,
        };
        if !(2..=64).contains(&sizes.n_taps) {
            return Err(ModelError::damaged(format!("a convolution of {} taps is not one", sizes.n_taps)));
        }
        if sizes.n_state > STATE_MAX {
            return Err(ModelError::damaged(format!("a state of {} values a channel is not one", sizes.n_state)));
        }
        Ok(sizes)
    }

    fn conv(&self, layer: usize, n_channels: usize, n_taps: usize) -> Result<ConvSpec, ModelError> {
        let name = |part: &str| format!("blk.{layer}.ssm_conv1d.{part}");
        Ok(ConvSpec {
            taps: self.tensors.table(&name("weight"), n_taps, n_channels)?,
            bias: self.tensors.vector_if_any(&name("bias"), n_channels)?,
        })
    }

    /// Describes consecutive parts of a matrix.
    pub(super) fn parts<const N: usize>(
        &mut self,
        name: &str,
        n_in: usize,
        lengths: [usize; N],
    ) -> Result<[LinearSpec; N], ModelError> {
        let n_rows = lengths.iter().sum();
        let mut end = 0;
        let specs: Result<Vec<LinearSpec>, ModelError> = lengths
            .iter()
            .map(|n| {
                end += n;
                self.linear_rows(Part { tensor: name, n_rows, alias: None }, n_in, end - n..end)
            })
            .collect();
        Ok(specs?.try_into().expect("there is one for each length"))
    }

    /// Describes a block of Mamba.
    pub(super) fn mamba(&mut self, layer: usize) -> Result<MambaSpec, ModelError> {
        let Sizes { n_inner, n_state, n_taps, rank } = self.ssm_sizes()?;
        let (n_embd, name) = (self.hp.n_embd, |part: &str| format!("blk.{layer}.{part}"));
        let [x, z] = self.parts(&name("ssm_in"), n_embd, [n_inner; 2])?;
        let [low, b, c] = self.parts(&name("ssm_x"), n_inner, [rank, n_state, n_state])?;
        let normalizes = self.keys.flag("ssm.dt_b_c_rms")?.unwrap_or(false);
        Ok(MambaSpec {
            x,
            z,
            conv: self.conv(layer, n_inner, n_taps)?,
            low,
            b,
            c,
            inner_eps: normalizes.then_some(self.hp.eps),
            dt: self.linear(&name("ssm_dt"), rank, n_inner)?,
            a: self.tensors.table(&name("ssm_a"), n_state, n_inner)?,
            d: self.tensors.vector(&name("ssm_d"), n_inner)?,
            out: self.linear(&name("ssm_out"), n_inner, n_embd)?,
        })
    }

    /// Describes a block of Mamba 2.
    pub(super) fn mamba2(&mut self, layer: usize) -> Result<Mamba2Spec, ModelError> {
        let Sizes { n_inner, n_state, n_taps, rank: n_heads } = self.ssm_sizes()?;
        let n_groups = self.keys.need_count("ssm.group_count")?;
        if !n_inner.is_multiple_of(n_heads) || !n_heads.is_multiple_of(n_groups) {
            let line = format!("{n_inner} channels cannot be {n_heads} heads in {n_groups} groups");
            return Err(ModelError::damaged(line));
        }
        let (n_embd, name) = (self.hp.n_embd, |part: &str| format!("blk.{layer}.{part}"));
        let n_channels = n_inner + 2 * n_groups * n_state;
        let [z, xbc, dt] = self.parts(&name("ssm_in"), n_embd, [n_inner, n_channels, n_heads])?;
        Ok(Mamba2Spec {
            z,
            xbc,
            dt,
            conv: self.conv(layer, n_channels, n_taps)?,
            dt_bias: self.tensors.vector(&name("ssm_dt.bias"), n_heads)?,
            a: self.tensors.vector(&name("ssm_a"), n_heads)?,
            d: self.tensors.vector(&name("ssm_d"), n_heads)?,
            norm: self.group_norm(&name("ssm_norm.weight"), n_inner / n_groups, n_groups)?,
            out: self.linear(&name("ssm_out"), n_inner, n_embd)?,
            n_heads,
            n_groups,
            n_state,
        })
    }

    fn group_norm(&self, name: &str, width: usize, n_groups: usize) -> Result<Option<NormSpec>, ModelError> {
        let spec = |weight: TensorRows| NormSpec { kind: NormKind::Rms, weight, bias: None, eps: self.hp.eps };
        let weight = self.tensors.has(name).then(|| self.tensors.table(name, width, n_groups)).transpose()?;
        Ok(weight.map(spec))
    }
}

#[cfg(test)]
mod tests;
