"""tools/compile.py makes what the finder loads, and says why where it cannot."""

from __future__ import annotations

import importlib.util
import json
import runpy
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from ddmq_common import compiled
from ddmq_common.queue_choice import murmur2
from tests.support.variants import mark_others_long
from tests.support.wheels import contents, installed_alone, server_wheel

ROOT = Path(__file__).resolve().parents[2]
LISTED = ["backend.progress.ack_map", "backend.progress.group_progress"]  # the second imports the first
LOAD = """
import os
import sys
from pathlib import Path
from ddmq_common import compiled
del os.environ["DDMQ_COMPILED"]
compiled.FOLDER = Path(sys.argv[1])
state = compiled.CompiledState()
state.install()
from ddmq_common import queue_choice
print(state, queue_choice.__file__, queue_choice.murmur2(b"21"))
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, tuple[str, ...]]:
    """What each file imports that the libraries are made of."""
    tool = runpy.run_path(str(ROOT / "tools" / "compile.py"), run_name="compile")
    assert "backend.records" not in tool["listed"]()
    return {file: tool["imports"](ROOT / file) for file in tool["sources"]()}


def test_modules_that_listed_modules_import_count_as_their_sources(
    imported: dict[str, tuple[str, ...]],
) -> None:
    assert {"backend/records.py", "backend/completion.py"} <= imported.keys()


def test_a_build_has_the_packages_whose_types_the_listed_modules_use(
    imported: dict[str, tuple[str, ...]],
) -> None:
    """pip builds where the build's requirements are alone; mypyc rejects subclasses of what it cannot see."""
    names = {name.partition(".")[0] for imports in imported.values() for name in imports}
    packages = packages_distributions()
    typed = {
        packages[name][0].replace("_", "-")
        for name in names - sys.stdlib_module_names
        if name in packages and not (ROOT / name).is_dir() and any(map(is_typed, search_locations(name)))
    }
    assert "msgspec" in typed
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["kafka"],
    ]
    dependencies = {Requirement(line).name: line for line in lines}
    assert {dependencies[name] for name in typed} <= set(project["build-system"]["requires"])


def search_locations(name: str) -> list[str]:
    spec = importlib.util.find_spec(name)
    return [] if spec is None else list(spec.submodule_search_locations or ())


def is_typed(folder: str) -> bool:
    return Path(folder, "py.typed").exists()


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The tool's names, with one module on its list."""
    monkeypatch.delenv(compiled.SWITCH, raising=False)
    names = runpy.run_path(str(ROOT / "tools" / "compile.py"), run_name="compile")
    names["build"].__globals__["listed"] = lambda: ["ddmq_common.queue_choice"]
    return names


def test_a_module_is_compiled_and_loaded(tool: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "made"
    tool["build"](folder)
    assert tool["up_to_date"](folder)
    manifest = json.loads((folder / compiled.MANIFEST).read_bytes())
    assert manifest["modules"] == ["ddmq_common.queue_choice"]
    assert list(manifest["sources"]) == ["ddmq_common/queue_choice.py"]
    environment = {"PYTHONPATH": str(ROOT), "DDMQ_COMPILED": "0"}  # not what the tree has
    command = [sys.executable, "-c", LOAD, str(folder)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    library = folder / f"ddmq_common.queue_choice{compiled.SUFFIX}"
    assert result.stdout == f"1 modules compiled {library} {murmur2(b'21')}\n", result.stderr


def test_without_a_c_compiler_one_line_reports_that_the_sources_run(
    tool: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    assert not tool["fill"](tmp_path / "made")
    assert capsys.readouterr().err == (
        "compile: the sources run as they are, interpreted: there is no C compiler (/nowhere/cc)\n"
    )
    assert not tool["up_to_date"](tmp_path / "made")
    manifest = json.loads((tmp_path / "made" / compiled.MANIFEST).read_bytes())
    assert (manifest["reason"], manifest["failed"]) == ("there is no C compiler (/nowhere/cc)", False)


def test_a_failure_to_compile_is_reported_and_replaces_older_libraries(
    tool: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "made"
    tool["keep_reason"](folder, tool["NotCompiledError"]("another reason"))
    monkeypatch.setenv("CC", "false")
    assert not tool["fill"](folder)
    assert "COMPILING FAILED" in capsys.readouterr().err
    manifest = json.loads((folder / compiled.MANIFEST).read_bytes())
    assert (manifest["reason"], manifest["failed"]) == ("false failed:", True)


def test_disabling_compilation_keeps_existing_libraries(
    tool: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "a library").touch()
    monkeypatch.setenv(compiled.SWITCH, "0")
    assert not tool["fill"](folder)
    assert [path.name for path in folder.iterdir()] == ["a library"]


# --- wheels, as `pip install .` builds them


def wheel_of(folder: Path, **environment: str) -> Path:
    return server_wheel(folder, LISTED, **environment)


@pytest.mark.parametrize("above", mark_others_long(["package", ".hidden", "a b"], ["package"]))
def test_a_wheel_is_compiled_below_any_folder(tmp_path: Path, above: str) -> None:
    """Also below one that is a package, whether its name is one that Python takes or not."""
    (tmp_path / above).mkdir()
    (tmp_path / above / "__init__.py").touch()
    wheel = wheel_of(tmp_path / above, MYPYPATH=str(tmp_path))
    libraries = {Path(name).name.removesuffix(compiled.SUFFIX) for name in contents(wheel)}
    assert {*LISTED, compiled.LIBRARY} <= libraries
    assert "-none-any" not in wheel.name


def test_a_wheel_without_libraries_fits_every_platform_and_names_the_reason(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path, CC="false")
    assert [name for name in contents(wheel) if name.endswith(".so")] == []
    assert wheel.name.endswith("-py3-none-any.whl")
    ddmq = installed_alone(wheel, tmp_path / "home")
    result = subprocess.run([ddmq, "--version"], capture_output=True, text=True, check=True, cwd=tmp_path)
    reason = "interpreted: no module was compiled at the installation: false failed:"
    assert reason in result.stdout
    command = [ddmq, "doctor", "--json"]
    report = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    (python,) = [check for check in json.loads(report.stdout) if check["check"] == "python"]
    assert python["status"] == "warning"
    assert reason in python["found"]
    assert "install again" in python["remedy"]
