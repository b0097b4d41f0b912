"""What pyproject.toml and MANIFEST.in list is all there is: no file is missing where ddmq is installed."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

from ddmq_command import PACKAGES

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
INCLUDED = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
DATA = PROJECT["tool"]["setuptools"]["package-data"]["*"]
NOT_INSTALLED = {"bench", "tests", "tools"}


def test_every_package_is_installed() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - NOT_INSTALLED
    assert packages == {name for name in INCLUDED if "." not in name}
    folders = {path.parent for name in packages for path in (ROOT / name).rglob("*.py")}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_the_command_knows_every_package_but_its_own() -> None:
    assert {*PACKAGES} == {name for name in INCLUDED if "." not in name} - {"ddmq_command"}


def test_every_data_file_is_installed() -> None:
    files = [
        path
        for name in INCLUDED
        if "." not in name
        for path in (ROOT / name).rglob("*")
        if path.is_file() and path.suffix != ".py" and not {"__pycache__", "_compiled"} & {*path.parts}
    ]
    assert len(files) > 4
    assert [path for path in files if not any(fnmatch(path.name, pattern) for pattern in DATA)] == []


def test_the_source_archive_has_what_make_needs() -> None:
    lines = [line.split() for line in (ROOT / "MANIFEST.in").read_text().splitlines()]
    grafted = {name for words in lines if words and words[0] == "graft" for name in words[1:]}
    assert grafted >= NOT_INSTALLED | {"conf", "docs"}
    included = {name for words in lines if words and words[0] == "include" for name in words[1:]}
    assert [name for name in grafted | included if not (ROOT / name).exists()] == []
