"""Makes `hf/`: a tiny random model of each architecture as a Hugging Face folder, and what llama.cpp's converter makes of it.

    python make_hf.py LLAMA_CPP [NAME ...]      LLAMA_CPP: a checkout of llama.cpp (`conversion/`, `gguf-py/`)

Needs torch 2.11, transformers 4.57.6, sentencepiece, safetensors, pyyaml. A folder has `config.json`, `model.safetensors` and `expected.txt`; its tokenizer is
one of `tokenizers/`, as the first line of `expected.txt` says. Weights are random bfloat16 numbers, in a file of F32 where that is told.
`expected.txt` has a line a key (`K name type value`) and a line a tensor (`T name type shape digest`) of the file in F16; long values are the first 16
digits of their SHA-256. The vocabularies are in none of the converter's tables, so the rule of cutting texts (`tokenizer.ggml.pre`) is put in by hand.
"""
import hashlib, json, os, shutil, sys
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

LLAMA_CPP = Path(sys.argv[1])
sys.path[:0] = [str(LLAMA_CPP), str(LLAMA_CPP / "gguf-py")]
import gguf
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
from conversion.base import TextModel

OUT = Path(__file__).parent / "hf"
N_VOCAB = 48
SPECIAL = ["<unk>", "<s>", "</s>", "<|endoftext|>", "<|user|>"]
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXT = "the quick brown fox jumps over the lazy dog and the other things that it is thinking of in the evening\n" * 20


def bpe(folder, is_llama3):
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + ["Ġ", "."]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("in", "g")]
    vocab = {token: i for i, token in enumerate(SPECIAL + letters + [a + b for a, b in merges])}
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=is_llama3))
    byte_level = processors.ByteLevel(trim_offsets=False)
    if is_llama3:
        split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
        first = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
        tokenizer.post_processor = processors.Sequence([byte_level, first])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.post_processor = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    names = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    fast.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    fast.save_pretrained(folder)


def spm(folder, is_json):
    import sentencepiece
    from transformers import LlamaTokenizer, LlamaTokenizerFast

    text = folder / "text"
    text.write_text(TEXT)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "spm"), vocab_size=44, model_type="bpe", hard_vocab_limit=False, num_threads=1, normalization_rule_name="identity"
    )
    text.unlink()
    slow = LlamaTokenizer(str(folder / "spm.model"), legacy=False)
    slow.add_tokens(["<tool_call>"])
    slow.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    slow.save_pretrained(folder)
    if is_json:
        LlamaTokenizerFast.from_pretrained(folder).save_pretrained(folder)
        (folder / "tokenizer.model").unlink(missing_ok=True)
        # As a class that wants no model of SentencePiece.
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    for name in ["spm.model", "spm.vocab"]:
        (folder / name).unlink()


def wordpiece(folder):
    letters = [chr(c) for c in range(ord("a"), ord("n"))]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + letters + ["##" + c for c in letters] + ["the", "##ing"]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(vocab_file=str(folder / "vocab.txt"), do_lower_case=True).save_pretrained(folder)


TOKENIZERS = {
    "bpe": (lambda folder: bpe(folder, False), "gpt-2"),
    "llama3": (lambda folder: bpe(folder, True), "llama-bpe"),
    "spm": (lambda folder: spm(folder, False), "default"),
    "spm-json": (lambda folder: spm(folder, True), "default"),
    "wordpiece": (wordpiece, "default"),
}
SIZES = dict(
    hidden_size=16, intermediate_size=24, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=1, vocab_size=N_VOCAB,
    max_position_embeddings=32, bos_token_id=1, eos_token_id=2, pad_token_id=None,
)
EXPERTS = dict(num_experts=2, num_experts_per_tok=1, moe_intermediate_size=8, norm_topk_prob=True)
MULTIPLIERS = dict(embedding_multiplier=6.0, residual_multiplier=0.5, attention_multiplier=0.25, logits_scaling=2.0)
LLAMA3_ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0)
FALCON = dict(
    mamba_d_ssm=16, mamba_n_heads=2, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=4, mamba_chunk_size=8, mamba_rms_norm=True, mamba_norm_before_gate=False,
    attention_in_multiplier=0.9, attention_out_multiplier=1.1, ssm_in_multiplier=1.2, ssm_out_multiplier=0.8, head_dim=8,
    mlp_multipliers=[0.9, 1.2], key_multiplier=0.8, ssm_multipliers=[0.8, 0.9, 1.1, 1.2, 1.0], lm_head_multiplier=0.9, embedding_multiplier=2.0,
)
LATENT = dict(
    moe_intermediate_size=8, num_key_value_heads=2, n_routed_experts=2, num_experts_per_tok=1, n_shared_experts=1, first_k_dense_replace=1,
    num_hidden_layers=2, kv_lora_rank=8, q_lora_rank=12, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=4, head_dim=4,
    n_group=1, topk_group=1, routed_scaling_factor=2.5,
)
# name: class, tokenizer, type of the file, settings
MODELS = {
    "llama": ("LlamaForCausalLM", "llama3", "float32", dict(rope_scaling=LLAMA3_ROPE)),
    "llama-tied": ("LlamaForCausalLM", "spm", "bfloat16", dict(tie_word_embeddings=True, attention_bias=True, mlp_bias=True)),
    "mistral": ("MistralForCausalLM", "spm-json", "bfloat16", {}),
    "mixtral": ("MixtralForCausalLM", "spm", "bfloat16", dict(num_local_experts=2, num_experts_per_tok=1)),
    "smollm3": ("SmolLM3ForCausalLM", "llama3", "bfloat16", {}),
    "granite": ("GraniteForCausalLM", "bpe", "bfloat16", MULTIPLIERS),
    "granitemoe": ("GraniteMoeForCausalLM", "bpe", "bfloat16", dict(num_local_experts=2, num_experts_per_tok=1, **MULTIPLIERS)),
    "qwen2": ("Qwen2ForCausalLM", "bpe", "bfloat16", dict(rope_scaling=YARN)),
    "qwen2moe": ("Qwen2MoeForCausalLM", "bpe", "bfloat16", dict(shared_expert_intermediate_size=8, **EXPERTS)),
    "qwen3": ("Qwen3ForCausalLM", "bpe", "bfloat16", dict(head_dim=8)),
    "qwen3moe": ("Qwen3MoeForCausalLM", "bpe", "bfloat16", dict(head_dim=8, **EXPERTS)),
    "gemma": ("GemmaForCausalLM", "spm", "float32", dict(head_dim=8)),
    "gemma2": ("Gemma2ForCausalLM", "spm", "bfloat16", dict(head_dim=8, sliding_window=8)),
    "gemma3": ("Gemma3ForCausalLM", "spm", "bfloat16", dict(head_dim=8, sliding_window=8)),
    "phi2": ("PhiForCausalLM", "bpe", "bfloat16", dict(num_key_value_heads=2, intermediate_size=64)),
    "phi3": ("Phi3ForCausalLM", "spm", "bfloat16", dict(original_max_position_embeddings=8, rope_scaling=dict(
        type="longrope", long_factor=[1.0, 1.5, 2.0, 2.5], short_factor=[1.0, 1.01, 1.02, 1.03]))),
    "gpt2": ("GPT2LMHeadModel", "bpe", "float32", dict(n_embd=16, n_layer=1, n_head=2, n_positions=32, n_ctx=32)),
    "gptneox": ("GPTNeoXForCausalLM", "bpe", "bfloat16", {}),
    "starcoder2": ("Starcoder2ForCausalLM", "bpe", "bfloat16", {}),
    "stablelm": ("StableLmForCausalLM", "bpe", "bfloat16", {}),
    "olmo2": ("Olmo2ForCausalLM", "bpe", "bfloat16", {}),
    "olmo3": ("Olmo3ForCausalLM", "bpe", "bfloat16", dict(num_hidden_layers=4, sliding_window=8)),
    "olmoe": ("OlmoeForCausalLM", "bpe", "bfloat16", dict(num_experts=2, num_experts_per_tok=1, num_key_value_heads=2)),
    "cohere2": ("Cohere2ForCausalLM", "bpe", "bfloat16", dict(sliding_window=8, logit_scale=0.5, rotary_pct=1.0)),
    "glm4": ("Glm4ForCausalLM", "bpe", "bfloat16", dict(head_dim=8, attention_bias=True)),
    "gpt-oss": ("GptOssForCausalLM", "bpe", "bfloat16", dict(head_dim=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=8)),
    "lfm2": ("Lfm2ForCausalLM", "bpe", "bfloat16", dict(
        num_hidden_layers=2, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False)),
    "deepseek2": ("DeepseekV2ForCausalLM", "bpe", "bfloat16", LATENT),
    "mamba": ("MambaForCausalLM", "bpe", "float32", dict(state_size=4, time_step_rank=2)),
    "mamba2": ("Mamba2ForCausalLM", "bpe", "bfloat16", dict(state_size=4, num_heads=4, head_dim=8, n_groups=1, chunk_size=8)),
    "falcon-h1": ("FalconH1ForCausalLM", "bpe", "float16", FALCON),
    "bert": ("BertModel", "wordpiece", "float32", dict(pad_token_id=0, num_key_value_heads=2)),
    "roberta": ("RobertaModel", "bpe", "float32", dict(pad_token_id=1, max_position_embeddings=34, num_key_value_heads=2)),
}


def randomise(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            size = 1.5 if name.endswith("A_log") else 0.5
            value.copy_((torch.randn(value.shape, generator=generator) * size).to(torch.bfloat16).to(value.dtype))


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def text_of(kind, value):
    """The value of a key as one text, the same as in the test."""
    if kind == "ARRAY":
        return "\x1f".join(value)
    if kind == "FLOAT32":
        return f"{np.float32(value).view(np.uint32):08x}"
    if kind == "BOOL":
        return str(bool(value)).lower()
    return str(value)


NAMES = {"UINT32": "u32", "INT32": "i32", "FLOAT32": "f32", "BOOL": "bool", "STRING": "string"}


def lines(path):
    reader = gguf.GGUFReader(path)
    out = []
    for key, field in reader.fields.items():
        if key.startswith("GGUF."):
            continue
        kinds = [kind.name for kind in field.types]
        value = field.contents()
        if kinds[0] == "ARRAY":
            text = text_of("ARRAY", [text_of(kinds[1], one) for one in value])
            kind = f"array-{NAMES[kinds[1]]}"
        else:
            text, kind = text_of(kinds[0], value), NAMES[kinds[0]]
        text = text.replace("\n", "\\n")
        out.append(f"K {key} {kind} {text if len(text) <= 60 and chr(31) not in text else digest(text.encode())}")
    for tensor in reader.tensors:
        shape = "x".join(str(int(n)) for n in tensor.shape)
        out.append(f"T {tensor.name} {tensor.tensor_type.name} {shape} {digest(tensor.data.tobytes())}")
    return sorted(out)


def make(name):
    class_name, tokenizer, dtype, settings = MODELS[name]
    cls = getattr(transformers, class_name)
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sizes = {k: v for k, v in SIZES.items() if not (class_name.startswith(("GPT2", "Mamba")) and k.startswith(("num_attention", "num_key", "intermediate", "max_pos")))}
    config = cls.config_class(**{**sizes, **settings})
    with transformers.modeling_utils.no_init_weights():
        model = cls(config).eval()
    model.tie_weights()
    randomise(model, len(name))
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    shared = OUT / "tokenizers" / tokenizer
    for file in shared.iterdir():
        shutil.copy(file, folder)
    pre = TOKENIZERS[tokenizer][1]
    TextModel.get_vocab_base_pre = lambda self, _: pre
    out = folder / "peer.gguf"
    with torch.inference_mode():
        found = get_model_class(get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT), mmproj=False)
        found(folder, gguf.LlamaFileType.MOSTLY_F16, out, model_name=name).write()
    (folder / "expected.txt").write_text("\n".join([tokenizer, *lines(out)]) + "\n")
    out.unlink()
    for file in shared.iterdir():
        (folder / file.name).unlink()


for tokenizer, (make_tokenizer, _) in TOKENIZERS.items():
    if not (OUT / "tokenizers" / tokenizer).is_dir():
        (OUT / "tokenizers" / tokenizer).mkdir(parents=True)
        make_tokenizer(OUT / "tokenizers" / tokenizer)
for name in sys.argv[2:] or MODELS:
    make(name)
    print(name, sum(file.stat().st_size for file in (OUT / name).iterdir()))
