"""How the commands of the pages are tested: the longest entry of COMMANDS that a command begins with says it.

RUN: tests/scenarios/test_docs_console.py runs it against a server, and compares what it prints with the page.
Others have a reason why they are not run, and a check that reads them (tests/unit/suite/test_page_blocks.py),
so that an option, a file or a name that no longer exists fails.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click
from packaging.requirements import Requirement

from ddmq.address import COMPONENTS, ready_line
from ddmq.cli.root import root
from ddmq.server.config import load_folder, with_flags
from metrics_job.cli import commands as job
from tests.support.pages import ROOT, Command


@dataclass(frozen=True)
class NotRun:
    """A command that no test of the pages runs: why, and what checks it in place of that."""

    reason: str
    check: Callable[[Command], None] = lambda _: None


RUN = NotRun("")


def check_command_line(command: Command) -> None:
    """Parse with the product's own parser: every option exists and takes its value."""
    parse(root, command.words[1:])


def parse(group: click.Command, words: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of a command line. Raises click's UsageError."""
    context, words = click.Context(group, info_name="ddmq"), list(words)
    while isinstance(group, click.Group):
        command = group.get_command(context, words[0])
        assert command is not None, f"there is no command {words[0]}"
        group = command
        words = words[1:]
    return group.make_context(group.name, words).params


def check_profile(command: Command) -> None:
    """Parse the command behind `ddmq --profile NAME`."""
    if len(command.words) > 3 and command.words[3] != "COMMAND":
        parse(root, command.words[3:])


def check_settings(command: Command) -> None:
    """Load the settings that this server would have, and compare its first line if the page shows one."""
    flags = parse(root, command.words[1:])
    for name in ("with_parent", "processes"):
        flags.pop(name)
    config = with_flags(load_folder(flags.pop("config_dir"), command.variables), **flags)
    addresses = {component: config.serve.listen_address(component) for component in COMPONENTS}
    assert command.output in ([], [ready_line(addresses, config.serve.data_dir)])


def check_requirement(command: Command) -> None:
    """Every extra exists, and what is installed by its name has the version that pyproject.toml allows."""
    for word in command.words[2:]:
        path, _, extra = word.partition("[")
        if path.startswith("dist/"):
            assert path.startswith(f"dist/ddmq_proxy-{_project('.')['version']}-")
        elif path.startswith("."):
            projects = [_project("packaging/client" if path.endswith(".whl") else ".")]
            for project in projects if extra else []:
                assert extra.rstrip("]") in project["optional-dependencies"], word
            if path.endswith(".whl"):
                assert path == f"./ddmq_client-{projects[0]['version']}-py3-none-any.whl"
        else:
            requirement = Requirement(word)
            allowed = {
                str(each.specifier)
                for each in map(Requirement, _requirements())
                if each.name == requirement.name
            }
            assert not requirement.specifier or str(requirement.specifier) in allowed, (word, allowed)


def _project(folder: str) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    return project


def _requirements() -> list[str]:
    return [text for texts in _project(".")["optional-dependencies"].values() for text in texts]


def check_target(command: Command) -> None:
    """The Makefile has the target."""
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{re.escape(command.words[1])}:", makefile, re.MULTILINE)


def check_module(command: Command) -> None:
    """The module that `python -m` runs exists."""
    assert importlib.util.find_spec(command.words[2]) is not None


def check_job(command: Command) -> None:
    """Parse the command line of the Spark job."""
    first = next(at for at, word in enumerate(command.words) if word in job.commands)
    parse(job, command.words[first:])


def check_files(command: Command) -> None:
    """Every file of the source tree that is named exists."""
    for word in command.words:
        if word.startswith("conf/"):
            assert list(ROOT.glob(word)), word


def check_chart(command: Command) -> None:
    """The chart has every value that `--set` sets."""
    check_files(command)
    values_schema = json.loads((ROOT / "conf/helm/ddmq/values.schema.json").read_text())
    for name, word in zip(command.words, command.words[1:], strict=False):
        if name == "--set":
            schema = values_schema
            for key in re.split(r"\.|\[\d+\]\.?", word.partition("=")[0]):
                if "properties" in schema:
                    assert key in schema["properties"], word
                    schema = schema["properties"][key]


CLUSTER = "needs a Kubernetes cluster, and helm"
CONTAINERS = "needs a container engine, and the base image from a registry"
LASTS = "runs until it is stopped"
SPARK = "starts Spark, which takes longer than all others; tests/spark/ runs the job"
SYSTEM = "changes the machine, as root"
KAFKA_TOOL = "belongs to Kafka, and mends a fault that the trial's broker does not have"
COMMANDS = {
    "ddmq": RUN,
    "ddmq serve": NotRun(f"{LASTS}; each server of the tests is one", check_settings),
    "ddmq secure": NotRun("writes into the home; tests/service/cli/test_secure.py", check_command_line),
    "ddmq --profile": NotRun(
        "needs a secured server; tests/scenarios/test_secured_from_the_first_start.py", check_profile
    ),
    "ddmq auth": NotRun("needs a folder of its own; tests/service/cli/test_auth.py", check_command_line),
    "ddmq console": NotRun(f"{LASTS}; tests/console/test_console_of_servers.py runs it", check_command_line),
    "ddmq tail": NotRun(f"{LASTS}; tests/service/cli/test_streams.py runs it", check_command_line),
    "ddmq findings": NotRun("a finding takes time; tests/service/cli/test_findings.py", check_command_line),
    "ddmq demo": NotRun("takes a quarter of a minute; tests/scenarios/test_demo.py", check_command_line),
    "ddmq bench": NotRun("takes minutes; tests/scenarios/test_bench_smoke.py runs each", check_command_line),
    "ddmq kafka": NotRun("starts a Kafka cluster; tests/service/kafka/ does", check_command_line),
    "ddmq report": NotRun(SPARK, check_command_line),
    "ddmq delay hold 5d0f6c1e-8a3b-4f27-9c64-1b2e7d90a3f5": NotRun(
        "needs a message with this id; tests/service/cli/test_hold_and_release.py", check_command_line
    ),
    "ddmq delay release 5d0f6c1e-8a3b-4f27-9c64-1b2e7d90a3f5": NotRun(
        "needs a message with this id; tests/service/cli/test_hold_and_release.py", check_command_line
    ),
    "curl": RUN,
    "grep": NotRun("runs in one line with the command before it"),
    "export": NotRun("its variables are those of the next command of the block"),
    "python -m": NotRun("takes minutes; tests/scenarios/ runs it for a shorter time", check_module),
    "python -m metrics_job": NotRun(SPARK, check_job),
    "python tools/client_wheel.py": NotRun("builds a wheel; tools/wheel_trial.py does"),
    "pytest": NotRun("tests/unit/testkit/test_testing_page.py runs the tests of the page"),
    "python -m shop": NotRun("is the Python block above it, which test_docs_python.py runs"),
    "dramatiq shop": NotRun(f"{LASTS}; tests/scenarios/test_dramatiq_end_to_end.py runs workers"),
    "make": NotRun("this test is a part of what it runs, or it takes minutes", check_target),
    "pip install": NotRun("downloads packages; tools/wheel_trial.py installs the wheels", check_requirement),
    "python3 -m venv": NotRun("belongs to the installation; tools/wheel_trial.py makes environments"),
    ".": NotRun("belongs to the installation"),
    "spark-submit": NotRun("needs a YARN cluster", check_job),
    "docker": NotRun(CONTAINERS, check_files),
    "helm": NotRun(CLUSTER, check_chart),
    "kubectl create": NotRun(CLUSTER),
    "kubectl exec": RUN,  # the command in it
    "kubectl exec queue-ddmq-0 -- ddmq doctor": NotRun("its folder is in a container; others run doctor"),
    "kill -HUP": NotRun("tests/scenarios/test_start_and_stop.py and others send SIGHUP to servers"),
    "kafka-transactions.sh": NotRun(KAFKA_TOOL),
    "kafka-console-consumer.sh": NotRun(KAFKA_TOOL),
    "useradd": NotRun(SYSTEM),
    "install": NotRun(SYSTEM, check_files),
    "systemctl": NotRun(SYSTEM),
    "/opt/ddmq/bin/pip install": NotRun("belongs to the installation", check_requirement),
}  # fmt: skip


def class_of(command: Command) -> NotRun:
    """Return the class of a command. Raises KeyError for one that has none."""
    text = f"{shlex.join(command.words)} "
    matches = [start for start in COMMANDS if text.startswith(f"{start} ")]
    if not matches:
        raise KeyError(f"{command} has no class in tests/support/page_classes.py")
    return COMMANDS[max(matches, key=len)]


# Pages whose Python blocks belong together in a way of their own; those of all others are whole programs,
# which tests/scenarios/test_docs_python.py runs.
PYTHON = {
    "README.md": ("tests/scenarios/test_readme.py", "tests/unit/testkit/test_testing_page.py"),
    "docs/first-steps.md": ("tests/scenarios/test_readme.py",),
    "docs/kafka-security.md": ("tests/unit/kafka/test_kafka_tokens.py",),
    "docs/security.md": (
        "tests/scenarios/test_secured_from_the_first_start.py",
        "tests/service/client/test_client_tls.py",
    ),
    "docs/spark.md": ("tests/spark/test_spark_page.py",),
    "docs/testing-handlers.md": ("tests/unit/testkit/test_testing_page.py",),
}
