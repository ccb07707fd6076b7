"""What learning gains on streams that no setting was chosen on: `ruvllm eval learning` over texts that anyone can get.

    python learning.py --ruvllm target/release/ruvllm --model FILE.gguf [--kind new --kind library --kind prose]
                       [--tokens 20000] [--variant all …] [--out FOLDER] [--texts FOLDER]

    new       packages of 2026, newer than the models, from PyPI (three wheels, their versions pinned)
    library   nine packages of the library of the Python that runs this: of 3.11.7 for the figures in docs/src/learning.md
    prose     three manuals from Debian's archive, in pieces of 12,000 bytes (needs apt-get and dpkg)

A package's stream is its files by their paths, tests left out. Each kind's figures lie in FOLDER/MODEL-KIND.json, and
its curves beside them. Controls are argparse.py, Debian's list of what changed in its policy and, for code, a manual,
for prose the GPL. Below the tables come the means over a kind's streams.
"""

import argparse
import gzip
import json
import shutil
import statistics
import subprocess
import sys
import sysconfig
from pathlib import Path

NEW = {
    "a2a-sdk": ("a2a-sdk==1.3.0", "a2a/server"),
    "google-adk": ("google-adk==2.13.0", "google/adk/agents"),
    "openai-agents": ("openai-agents==0.24.0", "agents"),
}
LIBRARY = "unittest multiprocessing email lib2to3 distutils importlib xml tkinter idlelib".split()
PROSE = {
    "debian-policy": ("debian-policy", "usr/share/doc/debian-policy/policy.txt.gz"),
    "developers-reference": ("developers-reference", "usr/share/developers-reference/developers-reference.txt.gz"),
    "debmake-doc": ("debmake-doc", "usr/share/doc/debmake-doc/debmake-doc.en.txt.gz"),
}
CHECKLIST = "usr/share/doc/debian-policy/upgrading-checklist.txt.gz"
PIECE_BYTES = 12_000


def run(*command, cwd=None):
    if subprocess.run(command, cwd=cwd, stdout=sys.stderr).returncode != 0:
        sys.exit(f"learning.py: {' '.join(map(str, command))} failed")


def fetched(folder, fetch):
    """Returns a folder that `fetch` fills; it has its name once that is done."""
    if not folder.exists():
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        fetch(part)
        part.rename(folder)
    return folder


def wheel(texts, requirement):
    """Returns the folder of an unpacked wheel."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", requirement, "--target"]
    return fetched(texts / requirement, lambda folder: run(*pip, folder))


def manual(texts, package, path):
    """Returns the text of a file in a Debian package."""

    def fetch(folder):
        run("apt-get", "download", "--quiet", package, cwd=folder)
        for archive in folder.glob("*.deb"):
            run("dpkg", "--extract", archive, folder)

    return gzip.decompress((fetched(texts / package, fetch) / path).read_bytes())


def sources(folder):
    paths = (path for path in folder.rglob("*.py") if not {"test", "tests"} & set(path.parts))
    return [path for path in sorted(paths) if path.stat().st_size > 0]


def pieces(texts, name, text):
    """Writes a text as files of about `PIECE_BYTES`, cut at line ends, and returns their paths."""
    folder = texts / "pieces"
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    while text:
        end = text.find(b"\n", PIECE_BYTES) + 1 or len(text)
        paths.append(folder / f"{name}-{len(paths):03}.txt")
        paths[-1].write_bytes(text[:end])
        text = text[end:]
    return paths


def streams(texts, kind):
    if kind == "new":
        return {name: sources(wheel(texts, wanted) / path) for name, (wanted, path) in NEW.items()}
    if kind == "library":
        library = Path(sysconfig.get_path("stdlib"))
        missing = [name for name in LIBRARY if not (library / name).is_dir()]
        if missing:
            sys.exit(f"learning.py: this Python has no {', '.join(missing)}: run it with Python 3.11")
        return {name: sources(library / name) for name in LIBRARY}
    return {name: pieces(texts, name, manual(texts, *where)) for name, where in PROSE.items()}


def controls(texts, kind):
    checklist = texts / "upgrading-checklist.txt"
    checklist.write_bytes(manual(texts, "debian-policy", CHECKLIST))
    code = Path(sysconfig.get_path("stdlib")) / "argparse.py"
    if kind == "prose":
        return [code, checklist, Path("/usr/share/common-licenses/GPL-3")]
    return [code, checklist, pieces(texts, "debmake-doc", manual(texts, *PROSE["debmake-doc"]))[2]]


def evaluate(args, kind):
    out = args.out / f"{Path(args.model).stem}-{kind}.json"
    command = [args.ruvllm, "eval", "learning", "--model", args.model, "--tokens", str(args.tokens), "--out", str(out)]
    for name, paths in streams(args.texts, kind).items():
        command += ["--stream", f"{name}={','.join(map(str, paths))}"]
    for path in controls(args.texts, kind):
        command += ["--control", str(path)]
    for variant in args.variant:
        command += ["--variant", variant]
    command += ["--approx-logits"] * args.approx_logits
    print(f"# {kind}", flush=True)
    if subprocess.run(command).returncode != 0:
        sys.exit(f"learning.py: ruvllm eval learning failed on {kind}")
    return json.loads(out.read_text())


def summarize(streams):
    """Prints the mean over the streams of what each learner gains, and the most that it costs a control."""
    for variant in streams[0]["second_half"]:
        gains = [stream["second_half"][variant]["change"] for stream in streams]
        costs = [control["changes"][variant]["change"] for stream in streams for control in stream["controls"]]
        mean, worst = 100 * statistics.mean(gains), 100 * max(costs)
        print(f"{variant:23s} mean {mean:+.2f} %, a control at most {worst:+.2f} %", flush=True)
    print(flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ruvllm", default="target/release/ruvllm")
    parser.add_argument("--model", required=True)
    parser.add_argument("--kind", action="append", choices=["new", "library", "prose"], default=[])
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--variant", action="append", default=[])
    parser.add_argument("--approx-logits", action="store_true", help="learn by the head's high bits, as greedy answers do")
    parser.add_argument("--out", type=Path, default=Path("target/learning"))
    parser.add_argument("--texts", type=Path, default=Path("target/learning/texts"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    args.texts.mkdir(parents=True, exist_ok=True)
    for kind in args.kind or ["new", "library", "prose"]:
        summarize(evaluate(args, kind)["streams"])


if __name__ == "__main__":
    main()
