"""tools/tidy.py finds what it says it finds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def tidy(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import tidy

    yield tidy
    sys.modules.pop("tidy")


def tree(root: Path, **files: str) -> Path:
    (root / "docs").mkdir()
    (root / "docs" / "glossary.md").write_text(
        "| word | meaning here | do not say |\n|---|---|---|\n| offset | a place | spot, two words |\n"
    )
    for room in ("backend", "ddmq"):
        (root / room).mkdir()
    for name, text in files.items():
        (root / f"{name.replace('_of_', '/')}.py").write_text(text)
    return root


def test_rings_of_types_alone_are_rings(tidy, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    lazily = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from backend.one import A\n"
    found = tidy.count(
        tree(
            tmp_path,
            backend_of_one="from backend.two import B\nclass A: ...",
            backend_of_two=lazily + "class B: ...",
        )
    )
    assert found["rings"] == {"backend.one backend.two": 2}


def test_names_words_and_lengths(tidy, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    long = "def f():\n" + "    x = 1\n" * 60 + "\n" * 400
    found = tidy.count(
        tree(
            tmp_path,
            backend_of_one="class Same:\n    the_spots = 'SpotCheck, spotless, despot'\n",
            ddmq_of_two="class Same: ...\nLINES = 18\nif LINES:\n    A = 1\nelse:\n    A = 2\nLINES = 6\n",
            ddmq_of_three=long,
            **{f"backend_of_f{number}": "" for number in range(15)},
        )
    )
    assert found["class_names"] == {"Same": 2}
    assert found["words"] == {"spot": 2}
    assert found["set_twice"] == {"ddmq/two.py:LINES": 2}
    assert found["functions"] == {"ddmq/three.py:f": 61}
    assert found["files"] == {"ddmq/three.py": 461}
    assert found["folders"] == {"backend": 16}


def test_what_is_more_than_allowed_is_told_and_less_is_written_down(tidy) -> None:  # type: ignore[no-untyped-def]
    found = {"words": {"spot": 3, "mark": 1}, "files": {}}
    assert [line.split(" (")[0] for line in tidy.breaches(found, {"words": {"spot": 2}})] == [
        "tidy: words: mark: 1, allowed 0",
        "tidy: words: spot: 3, allowed 2",
    ]
    assert list(tidy.breaches(found, {"words": {"spot": 3, "mark": 1}})) == []
    assert tidy.lowered(found, {"words": {"spot": 5, "gone": 1}, "files": {"a": 500}}) == {
        "words": {"spot": 3},
        "files": {},
    }


def test_reaches_of_tests_into_private_names(tidy, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    root = tree(tmp_path)
    (root / "tests").mkdir()
    (root / "tests" / "test_one.py").write_text(
        "from backend.one import _hidden, shown\n"
        "class Kit:\n    def __init__(self, other):\n        self._mine = other._mine\n"
        "def test(thing, monkeypatch):\n"
        "    thing.shown._state = thing.__dict__\n"
        "    thing._replace(a=1)\n"
        "    monkeypatch.setattr(thing, '_patched', 'b_c._d')\n"
        "    monkeypatch.setattr('backend.one._other', 1)\n"
    )
    assert tidy.count(root)["private"] == {"tests/test_one.py": 4}
