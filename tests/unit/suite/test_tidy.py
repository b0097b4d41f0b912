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
    for package in ("backend", "ddmq"):
        (root / package).mkdir()
    for name, text in files.items():
        (root / f"{name.replace('_of_', '/')}.py").write_text(text)
    return root


def test_rings_of_types_alone_are_rings(tidy, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    lazily = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from backend.one import A\n"
    counts = tidy.count(
        tree(
            tmp_path,
            backend_of_one="from backend.two import B\nclass A: ...",
            backend_of_two=lazily + "class B: ...",
        )
    )
    assert counts["rings"] == {"backend.one backend.two": 2}


def test_names_words_and_lengths(tidy, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    long = "def f():\n" + "    x = 1\n" * 60 + "\n" * 600
    counts = tidy.count(
        tree(
            tmp_path,
            backend_of_one="class Same:\n    the_spots = 'SpotCheck, spotless, despot'\n",
            ddmq_of_two="class Same: ...\nLINES = 18\nif LINES:\n    A = 1\nelse:\n    A = 2\nLINES = 6\n",
            ddmq_of_three=long,
            **{f"backend_of_f{number}": "" for number in range(15)},
        )
    )
    assert counts["class_names"] == {"Same": 2}
    assert counts["words"] == {"spot": 2}
    assert counts["set_twice"] == {"ddmq/two.py:LINES": 2}
    assert counts["functions"] == {"ddmq/three.py:f": 61}
    assert counts["files"] == {"ddmq/three.py": 661}
    assert counts["folders"] == {"backend": 16}


def test_counts_above_the_limit_are_reported_and_lower_ones_recorded(tidy) -> None:  # type: ignore[no-untyped-def]
    counts = {"words": {"spot": 3, "mark": 1}, "files": {}}
    assert [line.split(" (")[0] for line in tidy.breaches(counts, {"words": {"spot": 2}})] == [
        "tidy: words: mark: 1, allowed 0",
        "tidy: words: spot: 3, allowed 2",
    ]
    assert list(tidy.breaches(counts, {"words": {"spot": 3, "mark": 1}})) == []
    assert tidy.lowered(counts, {"words": {"spot": 5, "gone": 1}, "files": {"a": 500}}) == {
        "words": {"spot": 3},
        "files": {},
    }


SAMPLE = '''
class Store:
    """What it holds."""

    def __init__(self, on_close):
        self.on_close = on_close
        self.on_lost = lambda: None
        self.on_ready: Callable[[], None] = _ignore

    def known(self):
        """Return the cached record of a topic."""
        found = left, _told = 1, 2

    def flush(self): ...
    def _read_topic(self): ...
    def __len__(self): ...
'''


def test_constructs_that_confuse_a_reader_are_counted(tidy, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    sets_hooks = "def open(store):\n    store.on_close = 1\n    store.on_lost, store.on_ready = 2, 3\n"
    counted = tidy.count(
        tree(
            tmp_path,
            backend_of_one=SAMPLE,
            backend_of_two=sets_hooks,
            backend_of_generated='"""Generated."""\ndef known(): ...\n',
            ddmq_of_other="def open(store):\n    store.on_lost = 1\n",
        )
    )
    assert counted["bare_names"] == {"backend": 1}  # known
    assert counted["participles"] == {"backend": 3}  # found, left, told
    assert counted["fragments"] == {"backend": 1}  # What it holds.
    assert counted["late_hooks"] == {"backend": 2}  # on_lost and on_ready, and no other package's on_lost


SHARED_NAMES = """
def builtin_first():
    try: ...
    except (KeyError, RefusedError) as error: ...
    except LostError as error: ...

def one_class():
    try: ...
    except LostError as error: ...
    try: ...
    except LostError as error: ...

def inner_function():
    def own():
        try: ...
        except RefusedError as error: ...
    try: ...
    except LostError as error: ...

class Store:
    def read(self):
        if True:
            try: ...
            except LostError as error: ...
            except (OSError, ValueError) as error: ...
        for name in ():
            try: ...
            except LostError as lost: ...
"""


def test_except_clauses_of_a_compiled_function_that_share_a_name_are_counted(tidy, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    root = tree(tmp_path, backend_of_one=SHARED_NAMES, backend_of_two=SHARED_NAMES)
    (root / "pyproject.toml").write_text("[tool.ddmq]\ncompiled = ['backend.one', 'backend.gone']\n")
    assert tidy.count(root)["except_names"] == {"backend/one.py:read:error": 2}


def test_the_occurrences_of_one_measure_are_listed(tidy, tmp_path: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    import readability

    root = tree(tmp_path, backend_of_one=SAMPLE)
    monkeypatch.setattr(tidy, "ROOT", root)
    monkeypatch.setattr("tidy.sources", lambda _: {"backend.one": root / "backend" / "one.py"})
    assert readability.main(["backend", "bare_names"]) == 0
    assert capsys.readouterr().out == "backend/one.py:10: known\n"
    assert readability.main([]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("all ")
    assert readability.main(["backend"]) == 2
