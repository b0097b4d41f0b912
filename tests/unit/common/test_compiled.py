"""Which modules run compiled: all that are listed, or none, and why."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from pathlib import Path

import pytest

from ddmq_common import compiled
from ddmq_common.compiled import CompiledState, source_digest

Install = Callable[[], CompiledState]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A tree with two listed modules and what was compiled of them; the function that looks at it."""
    sources = {"room/first.py": b"A = 1\n", "room/second.py": b"B = 2\n", "room/types.py": b"C = int\n"}
    (tmp_path / "room").mkdir()
    (tmp_path / "made").mkdir()
    for file, source in sources.items():
        (tmp_path / file).write_bytes(source)
    manifest = {
        "suffix": compiled.SUFFIX,
        "modules": ["room.first", "room.second"],
        "sources": {file: source_digest(source) for file, source in sources.items()},
    }
    (tmp_path / "made" / compiled.MANIFEST).write_text(json.dumps(manifest))
    monkeypatch.setattr(compiled, "ROOT", tmp_path)
    monkeypatch.setattr(compiled, "FOLDER", tmp_path / "made")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delenv(compiled.SWITCH, raising=False)

    def looked() -> CompiledState:
        state = CompiledState()
        state.install()
        return state

    return looked


def test_listed_modules_come_from_their_libraries_and_others_do_not(install: Install, tmp_path: Path) -> None:
    others, state = len(sys.meta_path), install()
    assert str(state) == "2 modules compiled"
    state.install()
    assert len(sys.meta_path) == others + 1
    spec = sys.meta_path[0].find_spec("room.first", None)
    assert spec is not None
    assert isinstance(spec.loader, ExtensionFileLoader)
    assert spec.origin == str(tmp_path / "made" / f"room.first{compiled.SUFFIX}")
    assert sys.meta_path[0].find_spec("room.third", None) is None


@pytest.mark.parametrize("file", ["second.py", "types.py"])
def test_one_edited_source_makes_all_modules_interpreted(install: Install, tmp_path: Path, file: str) -> None:
    """Also one that is not compiled, whose types are compiled into others."""
    (tmp_path / "room" / file).write_bytes(b"B = 3\n")
    state = install()
    assert (state.modules, str(state)) == (
        (),
        f"interpreted: room/{file} was changed since it was compiled; `make setup` compiles it again",
    )
    (tmp_path / "room" / file).unlink()
    assert f"room/{file} was changed" in install().reason


def test_libraries_of_another_python_are_ignored(install: Install, tmp_path: Path) -> None:
    file = tmp_path / "made" / compiled.MANIFEST
    manifest = json.loads(file.read_bytes())
    file.write_text(json.dumps(manifest | {"suffix": ".cpython-27m.so"}))
    assert "is not for this Python" in install().reason


@pytest.mark.parametrize("content", ["", "{", "[]", '{"suffix": 1}', '{"suffix": "", "sources": 1}'])
def test_a_manifest_that_is_none_is_as_if_nothing_was_compiled(
    content: str, install: Install, tmp_path: Path
) -> None:
    (tmp_path / "made" / compiled.MANIFEST).write_text(content)
    assert str(install()) == "interpreted: no module was compiled at the installation"


def test_an_uncompiled_or_disabled_installation_says_so(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(compiled.SWITCH, "0")
    assert str(install()) == "interpreted: DDMQ_COMPILED is 0"
    monkeypatch.delenv(compiled.SWITCH)
    (tmp_path / "made" / compiled.MANIFEST).unlink()
    assert str(install()) == "interpreted: no module was compiled at the installation"


@pytest.mark.parametrize("failed", [True, False])
def test_the_reason_why_nothing_was_compiled_is_reported(
    install: Install, tmp_path: Path, failed: bool
) -> None:
    manifest = compiled.unbuilt_manifest("gcc failed: no space", failed)
    (tmp_path / "made" / compiled.MANIFEST).write_text(json.dumps(manifest))
    state = install()
    assert str(state) == "interpreted: no module was compiled at the installation: gcc failed: no space"
    assert (state.modules, state.failed) == ((), failed)
