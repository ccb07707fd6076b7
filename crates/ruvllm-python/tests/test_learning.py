"""Learning: corrected once, remembered after another load, and brought to another machine."""

import os

import pytest
from conftest import GOLDEN, OPTIONS, user

from ruvllm import Engine, InvalidRequestError


@pytest.fixture
def at(tmp_path, monkeypatch):
    """Loads the tiny model as on a machine with a folder of its own."""

    def load(name: str) -> Engine:
        monkeypatch.setenv("RUVLLM_HOME", str(tmp_path / name))
        os.makedirs(tmp_path / name, exist_ok=True)
        return Engine(GOLDEN, learn=True, **{**OPTIONS, "parallel": 2})

    return load


def asked(engine: Engine) -> tuple[str, str]:
    answer = engine.chat(user("Who is Ann?"), max_tokens=16, temperature=0)
    return answer["id"], answer["choices"][0]["message"]["content"].strip()


def test_an_answer_is_corrected_remembered_and_forgotten(at):
    with at("one") as first:
        id, before = asked(first)
        told = first.correct(id, "A smith.")
        assert told["learned"] and told["item"] and asked(first)[1] == "A smith."
        assert first.feedback(asked(first)[0], 1.0)["id"]
    with at("one") as again:
        assert asked(again)[1] == "A smith." and again.learned()["corrections"] == 1
        again.forget()
        assert asked(again)[1] == before and again.learned()["corrections"] == 0
        assert again.remember("When is Easter?", "In May.")["corrections"] == 1


def test_an_item_is_undone(at):
    with at("one") as engine:
        item = engine.correct(asked(engine)[0], "A smith.")["item"]
        assert asked(engine)[1] == "A smith."
        engine.undo(item)
        # What was learned from reading the questions stays, so that the answer may be another one than at first.
        assert asked(engine)[1] != "A smith." and engine.learned()["corrections"] == 0


def test_what_was_learned_goes_to_a_machine_that_trusts_the_first(at):
    with at("one") as one:
        one.remember("Who is Ann?", "A smith.")
        file, key = one.export_learned(), one.public_key
    with at("other") as other:
        with pytest.raises(InvalidRequestError):
            other.import_learned(file)
        changed = bytearray(file)
        changed[len(file) // 2] ^= 1
        with pytest.raises(InvalidRequestError):
            other.import_learned(bytes(changed), trust=[key])
        assert other.import_learned(file, trust=[key])["corrections"] == 1
        assert asked(other)[1] == "A smith."
