"""Packs the package and a built module as a wheel:

    python tools/pack.py libruvllm_python.so FOLDER

prints the path of the wheel in FOLDER. Its tag is the one that auditwheel finds the module to deserve: the oldest glibc that has all
that the module asks for.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tempfile
from email.generator import BytesGenerator
from pathlib import Path

from pyproject_metadata import StandardMetadata

ROOT = Path(__file__).resolve().parent.parent
#: The oldest Python that the module's stable interface (``abi3``) is of.
PYTHON = "cp39"


def metadata() -> StandardMetadata:
    """Returns what pyproject.toml says of the package."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        sys.exit("packing takes Python 3.11 or newer")
    text = (ROOT / "pyproject.toml").read_text()
    return StandardMetadata.from_pyproject(tomllib.loads(text), ROOT)


def stage(module: Path, folder: Path, facts: StandardMetadata) -> None:
    """Lays the content of the wheel out in a folder."""
    package = folder / "ruvllm"
    shutil.copytree(ROOT / "python/ruvllm", package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(module, package / "_native.abi3.so")
    subprocess.run(["strip", "--strip-unneeded", package / "_native.abi3.so"], check=True)
    info = folder / f"ruvllm-{facts.version}.dist-info"
    (info / "licenses").mkdir(parents=True)
    for name in ("LICENSE-MIT", "LICENSE-APACHE"):
        shutil.copy(ROOT.parent.parent / name, info / "licenses" / name)
    with (info / "METADATA").open("wb") as file:
        BytesGenerator(file, policy=facts.as_rfc822().policy).flatten(facts.as_rfc822())
    tag = f"{PYTHON}-abi3-linux_{platform.machine()}"
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: ruvllm\nRoot-Is-Purelib: false\nTag: {tag}\n")


def run(*args: object) -> None:
    """Runs a program of this environment; what it writes is told if it fails."""
    done = subprocess.run([sys.executable, "-m", *map(str, args)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{args[0]}: {done.stdout}{done.stderr}")


def main(module: str, out: str) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        content, plain = Path(temporary, "content"), Path(temporary, "plain")
        content.mkdir()
        plain.mkdir()
        stage(Path(module), content, metadata())
        run("wheel", "pack", content, "--dest-dir", plain)
        (wheel,) = plain.glob("*.whl")
        shutil.rmtree(out, ignore_errors=True)
        run("auditwheel", "repair", wheel, "--wheel-dir", out, "--only-plat")
    (wheel,) = Path(out).glob("*.whl")
    print(wheel)


main(*sys.argv[1:])
