"""lm-evaluation-harness: two small tasks, and their log-likelihoods against those of `ruvllm logits`."""

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
PASSAGES = [
    "The river rises in the mountains and runs for two hundred miles before it comes to the sea. In spring it floods the fields.",
    "A library lends books to people who live nearby. Most of them bring the books back, and some of them even read them first.",
    "To make bread, mix flour, water, salt and yeast, wait until the dough has doubled, and bake it in a hot oven for forty minutes.",
    "In 1969 two people walked on the moon. They stayed for a day, took 21 kilograms of stones with them, and came home by sea.",
]
PROSE = """\
task: prose
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}]
"""
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


def evaluate(name, task, documents):
    """Runs a task of the harness as its users do, and returns its samples."""
    (FOLDER / f"{name}.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (FOLDER / f"{name}.yaml").write_text(task % (FOLDER / f"{name}.jsonl"))
    options = f"model=smollm2:135m,base_url=http://127.0.0.1:8080/v1/completions,tokenizer={FOLDER}/tokenizer"
    program = [pathlib.Path(sys.executable).with_name("lm_eval"), "--model", "local-completions", "--model_args", options]
    program += ["--include_path", FOLDER, "--tasks", name, "--log_samples", "--output_path", FOLDER / "out"]
    subprocess.run(program, check=True, stdout=sys.stderr)
    (samples,) = (FOLDER / "out").rglob(f"samples_{name}_*.jsonl")
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


def choices(tokenizer):
    """Questions with two answers: each answer's log-likelihood behind its question."""
    documents = [{"question": question, "choices": answers} for question, answers in DOCUMENTS]
    samples = evaluate("sense", TASK, documents)
    differences = []
    for sample in samples:
        for i, given in enumerate(sample["arguments"].values()):
            context, choice = given["arg_0"], given["arg_1"]
            ids, n_context = tokenizer.encode(context + choice), len(tokenizer.encode(context))
            differences.append(abs(float(sample["resps"][i][0][0]) - log_likelihood(n_context, ids)))
    assert len(differences) == 2 * len(DOCUMENTS), f"{len(differences)} texts"
    return differences, sum(sample["acc"] for sample in samples)


def passages(tokenizer):
    """Whole texts, as perplexity tasks read them: each token behind those before it, the first behind the end of a text."""
    samples = evaluate("prose", PROSE, [{"text": text} for text in PASSAGES])
    differences = []
    for sample in samples:
        (given,) = sample["arguments"].values()
        ids = [tokenizer.eos_token_id, *tokenizer.encode(given["arg_0"])]
        told = sample["resps"][0][0]
        told = told[0] if isinstance(told, list) else told
        differences.append(abs(float(told) - log_likelihood(1, ids)))
    assert len(differences) == len(PASSAGES), f"{len(differences)} texts"
    return differences


def lm_eval():
    tokenizer = write_tokenizer()
    answers, n_right = choices(tokenizer)
    texts = passages(tokenizer)
    largest = max(answers + texts)
    assert largest <= DIFFERENCE_MAX, f"a log-likelihood differs by {largest}"
    return (
        f"{len(answers)} log-likelihoods of answers differ from those of `ruvllm logits` by at most {max(answers):.1e}, "
        f"{len(texts)} of whole texts by at most {max(texts):.1e}; {n_right:.0f} of 10 right"
    )


report.run(lm_eval)
