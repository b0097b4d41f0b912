"""Engines of other packages: found by their entry point, opened with their options, and named in errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.engines import BUNDLED, ENGINES, EngineSettings, open_engine, registered_engines
from backend.memory import MemoryBackend
from ddmq.server.config import load_folder, resolved_values, with_flags
from ddmq_common.clock import ManualClock
from ddmq_common.errors import ConfigError
from ddmq_common.metrics.registry import Registry

TOY = """
from backend.memory import MemoryBackend

opened = []


def open_engine(settings):
    opened.append(settings)
    return MemoryBackend(settings.clock)
"""
POINTS = """[ddmq.backends]
toy_log = toy_engine:open_engine
file_log = toy_engine:open_engine
broken = toy_engine:nothing
missing = no_such_package_of_ours:open_engine
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that registers engines, as pip installs it."""
    site = tmp_path / "site"
    metadata = site / "toy_engine-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "toy_engine.py").write_text(TOY)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-engine\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(site))
    registered_engines.cache_clear()
    yield
    registered_engines.cache_clear()


def settings(tmp_path: Path, options: object = None) -> EngineSettings:
    return EngineSettings(tmp_path / "data", ManualClock(), Registry(), options, lambda reason: None)


def configured(folder: Path, text: str) -> Path:
    conf = folder / "conf"
    conf.mkdir()
    (conf / "backend.yaml").write_text(text)
    return conf


@pytest.mark.usefixtures("toy")
def test_a_registered_engine_is_opened_with_the_options_of_its_file(tmp_path: Path) -> None:
    config = load_folder(configured(tmp_path, "engine: toy_log\noptions: {color: green}\n"))
    options = config.backend.engine_options(config.log)
    backend = open_engine(config.backend.engine, settings(tmp_path, options))
    assert isinstance(backend, MemoryBackend)
    backend.close()
    from toy_engine import opened  # type: ignore[import-not-found]

    assert opened[-1].options == {"color": "green"}
    assert resolved_values(config)["backend"]["options"] == "***"  # it may be a password


@pytest.mark.usefixtures("toy")
def test_the_command_lines_engine_goes_over_the_files(tmp_path: Path) -> None:
    config = with_flags(load_folder(configured(tmp_path, "options: {color: green}\n")), engine="toy_log")
    assert config.backend.engine_options(config.log) == {"color": "green"}


@pytest.mark.usefixtures("toy")
def test_an_unknown_engine_is_refused_with_the_names_of_those_that_exist(tmp_path: Path) -> None:
    every = "allowed: file_log, kafka, broken, missing, toy_log"
    with pytest.raises(ConfigError, match=f"engine: is 'rabbit'; {every}"):
        load_folder(configured(tmp_path, "engine: rabbit\n"))
    with pytest.raises(ConfigError, match=f"there is no engine 'rabbit'; {every}"):
        open_engine("rabbit", settings(tmp_path))


@pytest.mark.usefixtures("toy")
def test_a_package_cannot_replace_a_bundled_engine() -> None:
    assert list(ENGINES) == ["file_log", "kafka", "broken", "missing", "toy_log"]
    assert "file_log" not in registered_engines()


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("broken", "engine broken is registered as toy_engine:nothing, which is not there"),
        ("missing", "--backend missing needs the package no_such_package_of_ours"),
    ],
)
def test_an_engine_that_cannot_be_loaded_says_why(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        open_engine(name, settings(tmp_path))


def test_bundled_engines_need_no_metadata() -> None:
    assert {"file_log", "kafka"} == set(BUNDLED)
    assert all(name in ENGINES for name in BUNDLED)
    assert "toy_log" not in ENGINES
