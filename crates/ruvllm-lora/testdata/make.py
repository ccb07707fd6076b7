"""Makes the adapters of this folder and what transformers + peft compute with them.

    python -m venv venv && venv/bin/pip install torch==2.11.0 transformers==4.57.6 peft==0.21.2 gguf safetensors
    venv/bin/python crates/ruvllm-lora/testdata/make.py crates/ruvllm-testkit/testdata/models crates/ruvllm-lora/testdata

The tiny models of ruvllm-testkit are GGUF files; their weights go back into transformers' classes by the names of
gguf-py, checked by reproducing the model's stored logits. Everything is seeded.
"""
import gzip
import json
import shutil
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from peft import LoraConfig, get_peft_model

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
# name: model, LoraConfig
CASES = {
    "llama-qv": ("llama-a", dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])),
    "llama-all": ("llama-a", dict(r=4, lora_alpha=6, use_rslora=True, target_modules=ATTENTION + MLP + ["lm_head"],
                                  rank_pattern={"mlp.down_proj": 3, "layers.1.self_attn.q_proj": 2},
                                  alpha_pattern={r"layers\.0\.self_attn\.[qk]_proj": 3})),
    "llama-dora": ("llama-a", dict(r=4, lora_alpha=8, use_dora=True, target_modules=["q_proj", "k_proj", "down_proj"])),
    "qwen2": ("qwen2-a", dict(r=4, lora_alpha=8, target_modules=ATTENTION + MLP)),
    "gemma3": ("gemma3-a", dict(r=4, lora_alpha=8, target_modules=ATTENTION + MLP)),
    "phi3": ("phi3-a", dict(r=4, lora_alpha=8, target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"])),
    "gpt2": ("gpt2-a", dict(r=4, lora_alpha=8, fan_in_fan_out=True, target_modules=["c_attn", "c_proj", "c_fc"])),
    "gptneox": ("gptneox-a", dict(r=4, lora_alpha=8, target_modules=["query_key_value", "dense", "dense_h_to_4h"])),
    "mixtral": ("mixtral-a", dict(r=2, lora_alpha=4, target_modules=["q_proj", "w1", "w2", "w3"])),
}


def gguf_weights(path):
    if not path.exists():
        with tempfile.NamedTemporaryFile(suffix=".gguf", delete=False) as out:
            shutil.copyfileobj(gzip.open(f"{path}.gz"), out)
        path = out.name
    return {t.name: np.array(t.data, dtype=np.float32) for t in gguf.GGUFReader(path).tensors}


def unpermute(w, n_heads):
    return w.reshape(n_heads, w.shape[0] // n_heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def load(folder):
    """The transformers model of a tiny GGUF model."""
    case = json.loads((folder / "case.json").read_text())
    cls = getattr(transformers, case["hf_class"])
    config = cls.config_class(**case["config"], attn_implementation="eager")
    model = cls(config).eval()
    arch = case["arch"]
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, arch.upper()), 64)
    have, state = gguf_weights(folder / "model.gguf"), {}
    for name, old in model.state_dict().items():
        if "experts." in name:  # one tensor of all
            layer, expert, kind = name.split(".")[2], int(name.split(".")[5]), name.split(".")[6]
            kind = {"w1": "gate", "w2": "down", "w3": "up"}[kind]
            state[name] = torch.from_numpy(have[f"blk.{layer}.ffn_{kind}_exps.weight"][expert])
            continue
        if name.endswith((".attn.bias", ".masked_bias", "rotary_emb.inv_freq")):
            state[name] = old
            continue
        stem, suffix = name.rsplit(".", 1)
        found = names.get_name(stem)
        w = have.get(f"{found}.{suffix}", have.get(f"token_embd.{suffix}") if found == "output" else None)
        assert w is not None, (name, found)
        if arch == "llama" and stem.endswith(("q_proj", "k_proj")):
            w = unpermute(w, config.num_attention_heads if "q_proj" in stem else config.num_key_value_heads)
        if arch.startswith("gemma") and "norm" in stem:
            w = w - 1
        if stem.endswith(("c_attn", "c_proj", "c_fc")) and arch == "gpt2" and suffix == "weight":
            w = w.T
        if stem.endswith("query_key_value"):
            h = config.num_attention_heads
            w = w.reshape(3, h, -1, *w.shape[1:]).swapaxes(0, 1).reshape(w.shape)
        state[name] = torch.from_numpy(np.ascontiguousarray(w)).reshape(old.shape)
    model.load_state_dict(state)
    tokens = torch.tensor([case["tokens"]])
    with torch.no_grad():
        logits = model(tokens).logits[0].numpy()
    stored = np.fromfile(folder / "logits.f32", np.float32).reshape(logits.shape)
    assert abs(logits - stored).max() < 2e-3, (folder.name, abs(logits - stored).max())
    return model, tokens, stored


def main(models, out):
    index = {}
    for seed, (name, (base, config)) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        model, tokens, before = load(models / base)
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **config)).eval()
        for key, parameter in model.named_parameters():
            if "lora_A" in key or "lora_B" in key:
                parameter.data = (torch.randn_like(parameter) * 0.12).half().float()
            elif "lora_magnitude" in key:
                parameter.data = (parameter.data * (0.8 + 0.5 * torch.rand_like(parameter))).half().float()
        with torch.no_grad():
            logits = model(tokens).logits[0].numpy()
        folder = out / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)
        text = json.loads((folder / "adapter_config.json").read_text())
        text["base_model_name_or_path"] = None
        (folder / "adapter_config.json").write_text(json.dumps(text, indent=1, sort_keys=True) + "\n")
        # The last rows are enough to tell, and small.
        logits[-8:].astype("<f4").tofile(folder / "logits.f32")
        moved = abs(logits - before).max()
        index[name] = {"model": base, "n_rows": 8, "moved": round(float(moved), 3)}
        print(name, index[name], sum(f.stat().st_size for f in folder.iterdir()))
    (out / "index.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
