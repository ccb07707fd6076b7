"""What comes back: dictionaries as the HTTP API has them, with types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Optional, TypedDict, Union

if TYPE_CHECKING:
    from typing_extensions import NotRequired

#: Why an answer ended: by itself or a stop string, by a limit of tokens, or in order that tools are called.
FinishReason = Literal["stop", "length", "tool_calls"]


class AnswerHead(TypedDict):
    """What all answers begin with. ``id`` is for feedback; ``system_fingerprint`` tells builds and instruction sets apart."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class PromptDetails(TypedDict):
    """Tokens of the prompt that were not computed again."""

    cached_tokens: int


class CompletionDetails(TypedDict):
    """Tokens of the answer that were thoughts."""

    reasoning_tokens: int


class Usage(TypedDict):
    """Counts of tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Timings(TypedDict, total=False):
    """How long an answer took, as llama.cpp's server tells it."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class FunctionCall(TypedDict):
    """A function to call; ``arguments`` is JSON."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class TopLogprob(TypedDict):
    """A token with its log-probability."""

    token: str
    logprob: float
    bytes: Optional[list[int]]


class TokenLogprob(TopLogprob):
    """A token of the answer, with those that were likely in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """Log-probabilities of an answer."""

    content: list[TokenLogprob]


class ChatMessage(TypedDict):
    """An answer's message."""

    role: Literal["assistant"]
    content: Optional[str]
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    """One of the answers."""

    index: int
    message: ChatMessage
    logprobs: Optional[ChatLogprobs]
    finish_reason: FinishReason


class ChatCompletion(AnswerHead):
    """An answer to a conversation."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    timings: NotRequired[Timings]


class ChatDelta(TypedDict, total=False):
    """What a chunk adds to a message."""

    role: Literal["assistant"]
    content: Optional[str]
    refusal: None
    reasoning_content: str
    tool_calls: list[dict[str, Any]]


class ChatChunkChoice(TypedDict):
    """What a chunk adds to one of the answers."""

    index: int
    delta: ChatDelta
    logprobs: Optional[ChatLogprobs]
    finish_reason: Optional[FinishReason]


class ChatChunk(AnswerHead):
    """A piece of a streamed answer to a conversation."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: NotRequired[Optional[Usage]]
    timings: NotRequired[Timings]


class CompletionLogprobs(TypedDict):
    """Log-probabilities of a text; nothing is known of its first token."""

    tokens: list[str]
    token_logprobs: list[Optional[float]]
    top_logprobs: Optional[list[Optional[dict[str, float]]]]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One of the texts."""

    index: int
    text: str
    logprobs: Optional[CompletionLogprobs]
    finish_reason: Literal["stop", "length"]


class Completion(AnswerHead):
    """What a text goes on with."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage
    timings: NotRequired[Timings]


class CompletionChunkChoice(TypedDict):
    """What a chunk adds to one of the texts."""

    index: int
    text: str
    logprobs: Optional[CompletionLogprobs]
    finish_reason: Optional[Literal["stop", "length"]]


class CompletionChunk(AnswerHead):
    """A piece of a streamed text."""

    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]
    usage: NotRequired[Optional[Usage]]
    timings: NotRequired[Timings]


class FeedbackResult(TypedDict):
    """What came of feedback: ``item`` is the number by which it can be undone."""

    id: str
    learned: bool
    item: Optional[int]
    pattern: NotRequired[Any]


class LearningStatus(TypedDict, total=False):
    """What was learned. ``digest`` is equal where the same was learned."""

    model: str
    enabled: bool
    tokens: int
    entries: int
    corrections: int
    generation: int
    digest: str
    items: list[dict[str, Any]]
    generations: list[dict[str, Any]]


class Adapter(TypedDict, total=False):
    """An adapter that requests may name."""

    name: str
    model: str
    generation: int
    tier: str
    bytes: int
    rank: int
    pinned: bool
    uses: int


class Session(TypedDict, total=False):
    """A conversation that the engine keeps."""

    name: str
    user: Optional[str]
    model: str
    adapter: Optional[str]
    turns: int
    tokens: int
    used_ms: int


#: Tokens of a prompt, or its text; or several of them.
Prompt = Union[str, list[int], list[str], list[list[int]]]
