"""tools/check_names.py finds names that are gone, wherever they are used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ENGINE = """
import os
from backend.limits import *
try:
    import fast
except ImportError:
    fast = None
SIZE, (COUNT, _) = 1, (2, 3)
SLOTS: int
class Log: ...
def opened(): HIDDEN = 1
if SIZE:
    def at_once(): ...
"""


@pytest.fixture
def report_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    """What is told of a tree with one module in it and these files."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import check_names

    def report(**files: str) -> list[str]:
        texts = {
            path.replace("_of_", "/") + (".md" if "docs" in path else ".py"): text
            for path, text in files.items()
        }
        for path, text in {"backend/engine.py": ENGINE, "backend/limits.py": "MOST = 1", **texts}.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return list(check_names.report_missing(tmp_path))

    sys.modules.pop("check_names")
    return report


@pytest.mark.parametrize("name", ["Log", "opened", "at_once", "SIZE", "COUNT", "SLOTS", "fast", "os", "MOST"])
def test_what_a_module_binds_is_there(report_missing: Callable[..., list[str]], name: str) -> None:
    used = f"from backend import engine\nfrom backend.engine import {name}\nengine.{name}\n"
    assert report_missing(tests_of_test_a=used) == []


@pytest.mark.parametrize(
    ("used", "name"),
    [
        ("from backend.engine import HIDDEN", "backend.engine.HIDDEN"),
        ("from backend.moved import Log", "backend.moved.Log"),
        ("from backend import moved", "backend.moved"),
        ("import backend.moved", "backend.moved"),
        ("def test():\n    from backend.engine import Lost", "backend.engine.Lost"),
        ("from backend import engine\nengine.Lost()", "backend.engine.Lost"),
        ("from backend import engine as e\nmonkeypatch.setattr(e, 'LOST', 1)", "backend.engine.LOST"),
        ("monkeypatch.setattr('backend.engine.LOST', 1)", "backend.engine.LOST"),
        ("run([python, '-m', 'tests.lost'])", "tests.lost"),
        ("SCRIPT = '''\nfrom backend.engine import Log, Lost\n'''", "backend.engine.Lost"),
        ("# as in backend/moved.py", "backend/moved.py"),
        ("from rig import Lost", "rig.Lost"),
    ],
)
def test_missing_names_are_reported(report_missing: Callable[..., list[str]], used: str, name: str) -> None:
    line = used.count("\n") + 1 if "SCRIPT" not in used else 2
    assert report_missing(tests_of_test_a=used, tests_of_rig="Rig = 1") == [
        f"tests/test_a.py:{line}: there is no {name}"
    ]


def test_foreign_and_local_names_are_ignored(report_missing: Callable[..., list[str]]) -> None:
    used = """
from elsewhere import Anything
from rig import Rig
from backend import engine
import backend.engine
monkeypatch.setattr("backend.engine.os.open", 1)
monkeypatch.setattr("elsewhere.NAME", 1)
def test(engine):
    return engine.anything, Anything.more
"""
    assert report_missing(tests_of_test_a=used, tests_of_one_of_rig="Rig = 1", tests_of_two_of_rig="") == []


def test_pages_and_texts_of_the_product_are_read_too(report_missing: Callable[..., list[str]]) -> None:
    page = "# Page\n`backend/engine.py` and `backend/moved.py`, `python -m backend.moved`\n"
    block = "```python\n\nfrom backend.engine import (\n    Log,\n    Lost,\n)\n```\n"
    assert report_missing(docs_of_page=page + block, ddmq_of_a='"""See moved.py, engine.py."""') == [
        "docs/page.md:2: there is no backend.moved",
        "docs/page.md:2: there is no backend/moved.py",
        "docs/page.md:5: there is no backend.engine.Lost",
        "ddmq/a.py:1: there is no moved.py",
    ]
