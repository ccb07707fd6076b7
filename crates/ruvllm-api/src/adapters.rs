//! Fields by which requests name adapters.

use ruvllm_lora::{SCALE_MAX, SET_MAX};
use serde_json::Value;

use crate::fields::{Field, Kind, optional, required};

/// One adapter.
pub const ADAPTER: Field = optional(
    "adapter",
    Kind::Text,
    "the adapter that changes the model for this request, by the name that /v1/adapters lists",
);

/// Several of them.
pub const ADAPTERS: Field = optional(
    "adapters",
    Kind::List(&Kind::Object(MEMBER), 0, SET_MAX),
    "several adapters at once; what they change is added up",
);

/// Several of them, as llama.cpp names them.
pub const LORA: Field =
    optional("lora", Kind::List(&Kind::Object(NUMBERED), 0, SET_MAX), "the same, by the ids that /lora-adapters lists");

const NUMBERED: &[Field] = &[
    required("id", Kind::Int(0, 1 << 20), "the adapter's id"),
    optional("scale", SCALE, "how strong it is; 1 by default"),
];

const SCALE: Kind = Kind::Number(-(SCALE_MAX as f64), SCALE_MAX as f64);

const MEMBER: &[Field] =
    &[required("name", Kind::Text, "the adapter's name"), optional("scale", SCALE, "how strong it is; 1 by default")];

/// An adapter, and how strong it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Strength {
    /// The adapter's name.
    pub name: String,
    /// Factor of what it adds.
    pub scale: f32,
}

impl Strength {
    /// Reads how strong a member of a list says that the adapter `name` is.
    pub fn of(name: &str, member: &Value) -> Strength {
        Strength { name: name.to_owned(), scale: member["scale"].as_f64().map_or(1.0, |scale| scale as f32) }
    }
}
