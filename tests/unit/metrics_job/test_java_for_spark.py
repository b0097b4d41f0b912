"""Which Java Spark gets, and the wrapper around the one that comes with a package. Java itself is not run."""

from __future__ import annotations

import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from ddmq_common.java import find_java, java_version
from metrics_job.session import GIB, local_settings, wrapped_java


def runtime(folder: Path, release: str, says: str = "") -> Path:
    """A Java home with a release file, or with a `java` that says its version only."""
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    if release:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{release}"\n')
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "says", "major"),
    [
        ("17.0.15", "", 17),
        ("25", "", 25),
        ("1.8.0_402", "", 8),
        ("", 'openjdk version "21.0.2" 2024-01-16', 21),
        ("", "no such thing", None),
    ],
)
def test_the_version_of_a_java(tmp_path: Path, release: str, says: str, major: int | None) -> None:
    assert java_version(runtime(tmp_path / "java", release, says)) == major


@pytest.mark.slow
def test_no_java_at_all(tmp_path: Path) -> None:
    assert java_version(tmp_path) is None
    assert find_java({"PATH": str(tmp_path)}) is None


def test_java_home_precedes_path_unless_its_java_is_too_old(tmp_path: Path) -> None:
    old, new, newer = (runtime(tmp_path / version, version) for version in ("11.0.1", "17.0.1", "21.0.1"))
    assert find_java({"JAVA_HOME": str(new), "PATH": f"{newer}/bin"}) == new
    assert find_java({"JAVA_HOME": str(old), "PATH": f"{newer}/bin"}) == newer
    assert find_java({"JAVA_HOME": str(old), "PATH": f"{old}/bin"}) is None


@pytest.mark.slow
def test_the_wrapper_passes_everything_on_but_the_module(tmp_path: Path) -> None:
    java = tmp_path / "it's here" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nfor one do echo "<$one>"; done\n')
    java.chmod(0o755)
    home = wrapped_java(java, tmp_path / "home")
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "-Dx=$HOME *"]
    result = subprocess.run(
        [str(home / "bin" / "java"), *arguments], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines() == ["<-cp>", "<a b>", "<>", "<-Dx=$HOME *>"]


@pytest.mark.parametrize(("memory", "heap"), [(1, "1024m"), (6, "3072m"), (64, "4096m")])
def test_half_of_the_memory_between_1_and_4_gib(memory: int, heap: str) -> None:
    assert local_settings(2, memory * GIB)["spark.driver.memory"] == heap


def test_its_options_hold_no_space_of_a_folders_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark splits them there, and takes quotes for quotes."""
    folder = tmp_path / "it's a 'temporary' folder"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    options = local_settings(2, GIB)["spark.driver.extraJavaOptions"].split()
    (option,) = [option for option in options if option.startswith("-Dlog4j2.configurationFile=")]
    assert all(option.startswith("-") for option in options)
    assert "'" not in option
    file = Path(unquote(urlsplit(option.partition("=")[2]).path))
    assert file.is_relative_to(folder)
    assert file.exists()
