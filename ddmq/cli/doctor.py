"""`ddmq doctor`: is this machine, this directory, this configuration good to run on?

Each check answers ok, warning or failed with the remedy; exit code 1 when one failed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddmq.address import HostPort
from ddmq.check_result import FAILED, OK, WARNING, CheckResult
from ddmq.cli.output import json_option, print_json, print_table, reason
from ddmq.cli.values import Folder
from ddmq_command import INSTALL_AGAIN, UNINSTALLED
from ddmq_common import compiled
from ddmq_common.errors import ConfigError, DdmqError
from ddmq_common.private_files import find_folder_error

if TYPE_CHECKING:
    from ddmq.server.config import Configuration

NAMES_SHOWN = 10
SERVERS = 2  # producer and consumer proxy in one process
SLOW_SYNC_MS = 10.0
SYNC_ROUNDS = 20
REINSTALL_REMEDY = (
    "servers work, and take more CPU time; correct the cause and install again: pip install -v . "
    "in the source tree shows the build"
)
SERVER_RUNS = "a ddmq server runs there"
NEEDED = (  # beside what the command line itself is made of
    "gevent", "thrift.protocol.fastbinary", "thriftpy2", "google_crc32c", "yaml",
    "prometheus_client", "jsonpath_ng", "cel_expr_python", "rocksdict", "cronsim", "tzdata",
)  # fmt: skip


@click.command()
@click.option(
    "--data-dir",
    type=Folder(path_type=Path),
    help="Directory of the log (default: data_dir of the configuration, else ./data).",
)
@click.option(
    "--config",
    "config_dir",
    type=Folder(path_type=Path),
    help="Folder with the configuration files, as in `ddmq serve`.",
)
@json_option
def doctor(data_dir: Path | None, config_dir: Path | None, as_json: bool) -> None:
    """Check machine, directory, ports and configuration, and the Kafka cluster that it names.

    Changes nothing. Exit code 1 if a check failed; the last column says what to do.

    \b
    Examples:
      ddmq doctor
      ddmq doctor --config conf --data-dir /var/lib/ddmq
    """
    findings = list(run_checks(data_dir, config_dir))
    if as_json:
        print_json([_to_json(finding) for finding in findings])
    else:
        print_table("", ["check", "status", "found", "remedy"], findings)
    if any(finding.status == FAILED for finding in findings):
        raise click.exceptions.Exit(1)


def _to_json(result: CheckResult) -> dict[str, str]:
    return {
        "check": result.check,
        "status": result.status,
        "found": result.summary,
        "remedy": result.remedy,
    }


def run_checks(data_dir: Path | None, config_dir: Path | None) -> Iterator[CheckResult]:
    """Yield the result of each check, the most important first."""
    yield check_python()
    yield from two_distributions()
    missing = [finding for finding in map(check_library, NEEDED) if finding.status == FAILED]
    yield from missing
    if missing:
        return  # the servers' own modules, which know the rest, cannot be loaded
    yield CheckResult("libraries", OK, f"all {len(NEEDED)} there")
    yield check_report()
    from ddmq.secure.checks import check_security
    from ddmq.server.config import Configuration, load_folder

    config, config_error = Configuration(), ""
    try:
        config = load_folder(config_dir)
    except ConfigError as error:
        config_error = str(error)
    yield open_files(config)
    if data_dir is not None or not config_error:
        yield from check_disk(data_dir or config.serve.data_dir, config)
    if config_error:
        yield CheckResult("configuration", FAILED, config_error, "correct it; conf/ has commented examples")
        return
    yield CheckResult("configuration", OK, _describe_origin(config, config_dir))
    for key in config.retired:
        problem, _, remedy = str(key).rpartition("; ")
        yield CheckResult("configuration", WARNING, problem, remedy)
    yield from check_secrets(config)
    yield from check_security(config)
    if config.backend.engine == "kafka":
        yield from check_kafka(config, data_dir or config.serve.data_dir)
    admin = check_port("admin", config.serve.listen_address("admin"))
    for component in ("producer", "consumer"):
        result = check_port(component, config.serve.listen_address(component))
        if result.status == WARNING and admin.summary.partition(": ")[2].startswith(SERVER_RUNS):
            result = CheckResult(
                result.check, OK, f"{config.serve.listen_address(component)}: taken, while that server runs"
            )
        yield result
    yield admin
    if admin.summary.partition(": ")[2].startswith(SERVER_RUNS):
        yield from check_running_server(config.serve.listen_address("admin"))


def _describe_origin(config: Configuration, folder: Path | None) -> str:
    """Describe which folder or variables the configuration comes from."""
    from ddmq.server.setting_keys import is_variable

    variables = sum(map(is_variable, config.sources.values()))
    counted = [f"{variables} variable{'s' if variables > 1 else ''} of the environment"] if variables else []
    return " and ".join([str(folder), *counted] if folder else counted or ["defaults"])


def check_secrets(config: Configuration) -> Iterator[CheckResult]:
    """Check that no configuration file gives a secret to every user of the machine."""
    from ddmq.server.readable_secrets import readable_secrets

    for secret in readable_secrets(config):
        yield CheckResult("secrets", FAILED, secret.warning_text, secret.remedy)


def check_disk(data_dir: Path, config: Configuration) -> Iterator[CheckResult]:
    """Check the disk of the folder that holds the log: free space and the speed of a sync."""
    yield check_data_dir(data_dir)
    yield disk_space(_nearest_existing(data_dir), config)
    yield sync_speed(_nearest_existing(data_dir))


def check_kafka(config: Configuration, data_dir: Path) -> Iterator[CheckResult]:
    """Check that the cluster answers, belongs to the directory, and has no setting that breaks a promise."""
    try:
        from backend.kafka.cluster_rights import find_denied
        from backend.kafka.cluster_rules import find_violations
        from backend.kafka.coordination.feature_level import find_level_error
        from backend.kafka.opening import ClusterCheck, check_directory
    except ImportError as error:
        remedy = "run, in the source tree: pip install '.[kafka]'"
        yield CheckResult("kafka", FAILED, f"the package {error.name} is missing", remedy)
        return
    options = config.backend.kafka
    try:
        facts = ClusterCheck(options).read_facts()
    except DdmqError as error:
        remedy = "start the cluster, or correct bootstrap and librdkafka in backend.yaml"
        yield CheckResult("kafka", FAILED, str(error), remedy)
        return
    summary = f"cluster {facts.cluster_id} at {options.bootstrap}, {facts.brokers} brokers"
    yield CheckResult("kafka", OK, summary)
    try:
        check_directory(data_dir, facts.cluster_id, options.bootstrap)
    except ConfigError as error:
        problem, _, remedy = str(error).partition(": ")
        yield CheckResult("kafka cluster", FAILED, problem, remedy)
    if facts.feature_level is not None:
        level, supported = facts.feature_level, options.supported_level
        problem, _, remedy = find_level_error(level, supported).partition("; ")
        summary = problem or f"the installation is at level {level}; this process would support {supported}"
        yield CheckResult("kafka feature level", FAILED if problem else OK, summary, remedy)
    for finding in (*find_denied(facts), *find_violations(facts, options)):
        summary = f"{finding.resource_names}: {finding.setting}: {finding.breaks}"
        status = FAILED if finding.loses or finding.stops else WARNING
        yield CheckResult("kafka setting", status, summary, finding.remedy)
    if config.security.identities is not None:
        from backend.kafka.cluster_rules import Kind

        others = [resource.name for resource in facts.resources if resource.kind is Kind.OTHERS]
        yield describe_admitted_topics(others)


def describe_admitted_topics(names: Sequence[str]) -> CheckResult:
    """Report which topics of other programs clients reach, by the rights of this server on the cluster."""
    if not names:
        return CheckResult("kafka topics", OK, "no topic of another program is admitted")
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    listed = ", ".join(sorted(names)[:NAMES_SHOWN])
    summary = f"{len(names)} topics of other programs are admitted: {listed}{more}"
    remedy = (
        "for these, the rules of security.yaml count, not the cluster's own for the client; list in"
        " kafka.topics of backend.yaml only those that clients shall reach"
    )
    return CheckResult("kafka topics", WARNING, summary, remedy)


def check_python() -> CheckResult:
    """Report the interpreter, the installed release, and whether its modules are compiled."""
    release = f"ddmq-proxy {_installed_version('ddmq-proxy')}"
    versions = f"{platform.python_version()}, {release}, {compiled.STATE}"
    if compiled.STATE.failed:
        return CheckResult("python", WARNING, versions, REINSTALL_REMEDY)
    return CheckResult("python", OK, versions)


def two_distributions() -> Iterator[CheckResult]:
    """Warn if the package ddmq-client is installed beside this one, because both contain the module
    ddmq_client."""
    if _installed_version("ddmq-proxy") and _installed_version("ddmq-client"):
        remedy = f"run: pip uninstall ddmq-client; then {INSTALL_AGAIN}"
        yield CheckResult("ddmq-client", WARNING, UNINSTALLED, remedy)


def check_report() -> CheckResult:
    """Report whether `ddmq report` can run; servers do not need it."""
    version = _installed_version("pyspark")
    if not version:
        return CheckResult("ddmq report", OK, "not installed", "in the source tree: pip install '.[spark]'")
    return CheckResult("ddmq report", OK, f"with Spark {version}")


def _installed_version(package: str) -> str:
    """Return the version of an installed package; empty if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def check_library(name: str) -> CheckResult:
    """Check that a library which the servers need is installed and that its C part can be loaded."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        return CheckResult(
            f"library {name}", FAILED, str(error), "run: make setup, or pip install . in the source tree"
        )
    return CheckResult(f"library {name}", OK, "there")


def open_files(config: Configuration) -> CheckResult:
    """Check that one server process may open as many files as connections are allowed."""
    from ddmq.server.process.open_files import RESERVE_MAX, open_files_max, share_of_limit

    required, limit = config.rpc.connections_max, open_files_max()
    connections = share_of_limit(limit, SERVERS, required).connections
    if connections == required:
        return CheckResult(
            "open files", OK, f"{limit}: room for {required} connections of each Thrift server"
        )
    summary = f"{limit}: {connections} connections of each Thrift server instead of {required}"
    remedy = f"run: ulimit -Hn {SERVERS * required + RESERVE_MAX}, or lower connections_max in rpc.yaml"
    return CheckResult("open files", WARNING, summary, remedy)


def check_data_dir(data_dir: Path) -> CheckResult:
    """Check that the log can be created or written in the directory."""
    target = _nearest_existing(data_dir)
    if not target.is_dir():
        return CheckResult("directory", FAILED, f"{target} is not a folder", "choose another --data-dir")
    if not os.access(target, os.W_OK | os.X_OK):
        return CheckResult("directory", FAILED, f"{target} is not writable", "change its owner or mode")
    if data_dir.exists() and (error := find_folder_error(data_dir)):
        return CheckResult("directory", FAILED, error.partition(";")[0], error.rpartition("; ")[2])
    if not data_dir.exists():
        return CheckResult("directory", OK, f"{data_dir} (will be made)")
    from backend.file_log.lock import find_lock_owner

    owner = find_lock_owner(data_dir)
    if owner is None:
        return CheckResult("directory", OK, str(data_dir))
    summary = f"{data_dir}, in use by a server ({owner})"
    return CheckResult("directory", OK, summary, "another server with this directory joins that one")


def disk_space(target: Path, config: Configuration) -> CheckResult:
    """Compare the free space at `target` with the limits in file_log.yaml."""
    from backend.file_log.core.retention import apply_marks

    usage = shutil.disk_usage(target)
    mark = apply_marks(config.log.retention, usage.total)
    summary = f"{_format_gib(usage.free)} free of {_format_gib(usage.total)}"
    if usage.free < mark.refuse:
        return CheckResult(
            "disk space", FAILED, summary, f"sends are refused under {_format_gib(mark.refuse)}"
        )
    if usage.free < mark.clean:
        return CheckResult("disk space", WARNING, summary, f"cleaning starts under {_format_gib(mark.clean)}")
    return CheckResult("disk space", OK, summary)


def _format_gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def sync_speed(target: Path) -> CheckResult:
    """Measure how long one fdatasync at `target` takes. No durable send can be faster."""
    try:
        milliseconds = statistics.median(_sync_times(target))
    except OSError as error:
        return CheckResult("fdatasync", FAILED, f"{target}: {reason(error)}", "choose another --data-dir")
    summary = f"{milliseconds:.2f} ms median"
    if milliseconds > SLOW_SYNC_MS:
        return CheckResult(
            "fdatasync", WARNING, summary, "a slow disk; `durability: written` trades safety for speed"
        )
    return CheckResult("fdatasync", OK, summary)


def _sync_times(target: Path) -> list[float]:
    times = []
    with tempfile.TemporaryFile(dir=target) as file:
        for _ in range(SYNC_ROUNDS):
            start = time.perf_counter()
            os.write(file.fileno(), bytes(4096))
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - start) * 1000)
    return times


def check_port(component: str, address: HostPort) -> CheckResult:
    """Check that the component can listen at the address, or that a ddmq server answers there already."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    probe = socket.socket(family, socket.SOCK_STREAM)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((address.host, address.port))
    except OSError as error:
        if component == "admin" and (state := _server_state(address)):
            return CheckResult(f"{component} port", OK, f"{address}: {SERVER_RUNS}, {state}")
        remedy = f"a running server's own, or choose another with --{component} HOST:PORT"
        return CheckResult(f"{component} port", WARNING, f"{address}: {reason(error)}", remedy)
    finally:
        probe.close()
    return CheckResult(f"{component} port", OK, f"{address} is free")


def check_running_server(address: HostPort) -> Iterator[CheckResult]:
    """Report the warning of the server at the admin address, if one runs there and has one."""
    warning = _server_health(address).get("warning")
    if warning:
        problem, _, remedy = warning.partition(": ")
        yield CheckResult("server", FAILED, problem, f"{remedy}; see docs/kafka.md, several machines")


def _server_state(address: HostPort) -> str:
    """Describe whether the ddmq server at the address is ready; empty if it is another program."""
    health = _server_health(address)
    if not health:
        return ""
    return "ready" if health["ready"] else f"not ready: {health['reason']}"


def _server_health(address: HostPort) -> dict[str, Any]:
    """Return the health that the ddmq server at the address reports; empty if there is no server."""
    from ddmq.cli.admin_client import AdminClient

    try:
        health = AdminClient(address, timeout_s=2.0).get("health")
        return {name: health[name] for name in health} if {"ready", "reason"} <= set(health) else {}
    except (click.ClickException, TypeError):
        return {}


def _nearest_existing(path: Path) -> Path:
    """Return the path, or its nearest parent folder that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
