"""What is installed beside us: all of it by hash, and each with its licence in docs/licences.md."""

from __future__ import annotations

import re
import runpy
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ENTRIES = re.split(r"^(?=[A-Za-z0-9])", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)[1:]
LOCKED = {re.split("[= ]", entry, maxsplit=1)[0]: entry for entry in ENTRIES}
ROWS = dict(re.findall(r"^\| ([a-z0-9.-]+) \| ([^|]+) \|", (ROOT / "docs/licences.md").read_text(), re.M))
del ROWS["package"]  # the head of the table


def test_setup_downloads_nothing_without_a_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what the lock names is fetched; our own package is built by what has been installed from it."""
    ran: list[tuple[str, ...]] = []
    setup = runpy.run_path(str(ROOT / "tools" / "setup.py"))
    monkeypatch.setitem(setup["main"].__globals__, "run", lambda *command: ran.append(command))
    setup["main"](str(tmp_path))
    fetching = [command for command in ran if "install" in command]
    assert [command[1:3] for command in ran if command not in fetching] == [("-m", "venv")]
    locked, own = fetching
    assert "--require-hashes" in locked
    assert locked[-2:] == ("-r", "requirements.lock")
    assert {"--no-deps", "--no-build-isolation"} <= set(own)
    assert own[-2:] == ("--editable", ".")


def test_the_lock_has_a_hash_for_everything_and_what_builds_us() -> None:
    assert [name for name, entry in LOCKED.items() if "--hash=sha256:" not in entry] == []
    for line in PROJECT["build-system"]["requires"]:
        requirement = Requirement(line)
        version = LOCKED[requirement.name].removeprefix(f"{requirement.name}==").split()[0]
        assert requirement.specifier.contains(version)


def test_every_locked_package_has_its_licence_in_the_list() -> None:
    assert sorted(ROWS) == sorted(LOCKED)


@pytest.mark.parametrize("name", sorted(ROWS))
def test_the_list_says_what_the_installed_package_says(name: str) -> None:
    try:
        package: Any = metadata(name)  # a message, whose methods Python 3.11 does not state
    except PackageNotFoundError:
        assert "win32" in LOCKED[name] or "python_full_version" in LOCKED[name], "installed on Linux"
        return
    expression = package.get("License-Expression")
    if expression:
        assert ROWS[name] == expression
    else:
        texts = [package.get("License") or "", *(package.get_all("Classifier") or [])]
        files = package.get_all("License-File") or []
        texts += [distribution(name).read_text(f"licenses/{file}") or "" for file in files]
        family = ROWS[name].split("-")[0]
        shown = {"GPL": "GNU General Public License", "MPL": "Mozilla", "PSF": "Python Software"}.get(
            family, family
        )
        assert any(shown in text for text in texts), texts


def test_the_files_of_our_own_licence_are_installed() -> None:
    assert PROJECT["project"]["license-files"] == ["LICENSE", "NOTICE"]
    assert all((ROOT / name).is_file() for name in PROJECT["project"]["license-files"])
