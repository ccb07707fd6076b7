//! Which linear layers of a model are adapted.

use ruvllm_model::{FfnSpec, LayerSpec, LinearSpec, MixerSpec};

/// Iterates over the linear layers of a dense layer of attention, with what they do.
pub(super) fn linears(layer: &LayerSpec) -> impl Iterator<Item = (Role, &LinearSpec)> {
    let attention = match &layer.mixer {
        MixerSpec::Attention(own) => {
            vec![(Role::Query, &own.q), (Role::Key, &own.k), (Role::Value, &own.v), (Role::Output, &own.o)]
        }
        _ => Vec::new(),
    };
    let mlp = match &layer.ffn {
        Some(FfnSpec::Mlp(own)) => own.linears().map(|linear| (Role::Mlp, linear)).collect(),
        None | Some(FfnSpec::Moe(_)) => Vec::new(),
    };
    attention.into_iter().chain(mlp)
}

/// Role of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Makes queries.
    Query,
    /// Makes keys.
    Key,
    /// Makes values.
    Value,
    /// Makes attention's output.
    Output,
    /// Belongs to the feed-forward block.
    Mlp,
}

/// Set of the linear layers that are adapted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetSet {
    /// Queries and values, as the first LoRAs.
    QueriesAndValues,
    /// All of attention.
    Attention,
    /// All of attention and of the feed-forward blocks.
    #[default]
    All,
}

impl TargetSet {
    /// Returns whether a layer is among them.
    pub fn has(self, role: Role) -> bool {
        match self {
            TargetSet::QueriesAndValues => matches!(role, Role::Query | Role::Value),
            TargetSet::Attention => role != Role::Mlp,
            TargetSet::All => true,
        }
    }

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            TargetSet::QueriesAndValues => "qv",
            TargetSet::Attention => "attn",
            TargetSet::All => "all",
        }
    }
}
