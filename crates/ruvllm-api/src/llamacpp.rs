//! Fields that llama.cpp's clients send along, at whichever endpoint. Most change nothing, and are named in the answer's header.

use crate::adapters::LORA;
use crate::fields::{Field, Kind, optional, unheeded};
use crate::limits::{N_INDENT, T_MAX_PREDICT};
use crate::progress::RETURN_PROGRESS;

/// The place of a request.
pub const ID_SLOT: Field = optional(
    "id_slot",
    Kind::Int(-1, 1 << 40),
    "the place whose last request this is, for /slots/{id}; any place computes it, and the answer is the same",
)
.also(&["slot_id"]);

const COUNT: Kind = Kind::Int(-1, 1 << 40);
const DRAFTS: &str = "tokens are drafted as the server's options say; the answer is the same";

/// Fields of llama.cpp's clients that all endpoints for text take.
pub const ALIKE: &[Field] = &[
    LORA,
    T_MAX_PREDICT,
    N_INDENT,
    unheeded("t_max_prompt_ms", COUNT, "timeout_ms limits the request in all"),
    optional("cache_prompt", Kind::Bool, "false: compute the whole prompt, and cache nothing of it"),
    unheeded("n_cache_reuse", COUNT, "what is cached is found by its beginning"),
    ID_SLOT,
    unheeded("n_keep", COUNT, "what does not fit the context is refused"),
    unheeded("n_discard", COUNT, "what does not fit the context is refused"),
    unheeded("min_keep", COUNT, "the likeliest token is always kept"),
    RETURN_PROGRESS,
    unheeded("backend_sampling", Kind::Bool, "tokens are chosen as is fastest"),
    unheeded("sse_ping_interval", COUNT, "a comment is sent every 10 s"),
    unheeded("speculative.n_max", COUNT, DRAFTS),
    unheeded("speculative.n_min", COUNT, DRAFTS),
    unheeded("speculative.p_min", Kind::Number(0.0, 1.0), DRAFTS),
    unheeded("speculative.type", Kind::Text, DRAFTS),
    unheeded(
        "preserved_tokens",
        Kind::List(&Kind::Any, 0, 4096),
        "marks of calls and thoughts are kept as they are needed",
    ),
    unheeded("penalize_nl", Kind::Bool, "line feeds are penalised as others are"),
    unheeded("adaptive_decay", Kind::Number(0.0, 1.0), "there is no adaptive sampler"),
    unheeded("adaptive_target", Kind::Number(-1e6, 0.0), "there is no adaptive sampler; below 0 is none"),
    unheeded("tfs_z", Kind::Only("1", "there is no such sampler; use min_p or typical_p"), "1 keeps all"),
    optional("grammar_lazy", Kind::Only("false", "a grammar holds from the first token; use tools"), "when it begins"),
    optional("image_data", Kind::Only("[]", "the model reads text only"), "none"),
];

/// Fields that only `/completion` and `/infill` heed, and other endpoints take as well.
pub const OF_CHATS: &[Field] = &[
    unheeded("n_probs", COUNT, "use logprobs"),
    unheeded("return_tokens", Kind::Bool, "logprobs tell the tokens"),
    optional(
        "post_sampling_probs",
        Kind::Only("false", "log-probabilities are the model's own, as they are before samplers act; use /completion"),
        "which probabilities are told",
    ),
    unheeded("response_fields", Kind::List(&Kind::Text, 0, 256), "the answer has all of its fields"),
    unheeded("reasoning_control", Kind::Bool, "a thought ends as thinking_budget_tokens says"),
    optional("parse_tool_calls", Kind::Only("true", "leave out 'tools' for the text as it is"), "tell calls apart"),
    optional(
        "thinking_forced_open",
        Kind::Only("false", "a thought begins where the chat template or the model begins it"),
        "whether the answer begins with a thought",
    ),
];
