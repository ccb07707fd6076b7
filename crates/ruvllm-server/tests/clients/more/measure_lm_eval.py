"""lm-evaluation-harness: a small task, and its log-likelihoods against those of `ruvllm logits`."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import report

FOLDER = pathlib.Path(tempfile.mkdtemp())
MODELS = pathlib.Path(os.environ.get("RUVLLM_MODELS") or pathlib.Path.home() / ".cache/ruvllm/models")
FILE = MODELS / "smollm2-135m.gguf"
DIFFERENCE_MAX = 1e-3
DOCUMENTS = [
    ("The capital of France is", ["Paris", "Rome"]),
    ("Water freezes at zero", ["degrees", "bananas"]),
    ("To drive in a nail, take a", ["hammer", "spoon full of sugar"]),
    ("The opposite of hot is", ["cold", "warm water"]),
    ("Bees make", ["honey", "cheese and bread"]),
    ("At night one sees the", ["moon and the stars", "sun"]),
    ("To cut paper, use", ["scissors", "a pillow"]),
    ("A week has seven", ["days", "months of winter"]),
    ("Fish live in", ["water", "the sky above us"]),
    ("Two plus two is", ["four", "eleven"]),
]
TASK = """\
task: sense
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: 0
metric_list: [{metric: acc}]
"""


def write_tokenizer():
    """Writes the tokenizer of the model's file as transformers reads it: byte-level BPE, digits apart."""
    fields = gguf.GGUFReader(FILE).fields
    words, merges = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.merges"].contents()
    vocab = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(merge.split(" ")) for merge in merges]))
    digits = pre_tokenizers.Digits(individual_digits=True)
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    end = words[fields["tokenizer.ggml.eos_token_id"].contents()]
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end)
    fast.save_pretrained(FOLDER / "tokenizer")
    return fast


def evaluate():
    """Runs the harness as its users do, and returns its samples."""
    documents = [json.dumps({"question": question, "choices": choices}) for question, choices in DOCUMENTS]
    (FOLDER / "sense.jsonl").write_text("\n".join(documents))
    (FOLDER / "sense.yaml").write_text(TASK % (FOLDER / "sense.jsonl"))
    options = f"model=smollm2:135m,base_url=http://127.0.0.1:8080/v1/completions,tokenizer={FOLDER}/tokenizer"
    program = [pathlib.Path(sys.executable).with_name("lm_eval"), "--model", "local-completions", "--model_args", options]
    program += ["--include_path", FOLDER, "--tasks", "sense", "--log_samples", "--output_path", FOLDER / "out"]
    subprocess.run(program, check=True, stdout=sys.stderr)
    (samples,) = (FOLDER / "out").rglob("samples_sense_*.jsonl")
    return [json.loads(line) for line in samples.read_text().splitlines()]


def log_likelihood(context, ids):
    """Returns the sum over the tokens behind the context, from the logits that `ruvllm logits` writes."""
    (FOLDER / "ids.json").write_text(json.dumps(ids))
    program = [os.environ["RUVLLM"], "logits", "--model", FILE, "--tokens", FOLDER / "ids.json", "--out", FOLDER / "out.f32"]
    subprocess.run(program, check=True, stdout=sys.stderr)
    logits = numpy.fromfile(FOLDER / "out.f32", "<f4").reshape(len(ids), -1).astype(float)
    logits -= logits.max(axis=1, keepdims=True)
    logits -= numpy.log(numpy.exp(logits).sum(axis=1, keepdims=True))
    return sum(logits[at - 1, ids[at]] for at in range(context, len(ids)))


def lm_eval():
    tokenizer, samples = write_tokenizer(), evaluate()
    largest, n_texts, n_right = 0.0, 0, 0
    for sample in samples:
        n_right += sample["acc"]
        for i, given in enumerate(sample["arguments"].values()):
            context, choice = given["arg_0"], given["arg_1"]
            ids, n_context = tokenizer.encode(context + choice), len(tokenizer.encode(context))
            told = float(sample["resps"][i][0][0])
            largest = max(largest, abs(told - log_likelihood(n_context, ids)))
            n_texts += 1
    assert n_texts == 2 * len(DOCUMENTS), f"{n_texts} texts"
    assert largest <= DIFFERENCE_MAX, f"a log-likelihood differs by {largest}"
    return f"{n_texts} log-likelihoods differ from those of `ruvllm logits` by at most {largest:.1e}; {n_right:.0f} of 10 right"


report.run(lm_eval)
