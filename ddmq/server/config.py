"""The whole configuration of a server process: one frozen object, from files, environment and command line.

`--config DIR` names a folder with any of the files in FILES; what is missing there keeps its defaults.
Variables of the environment override files (setting_keys.py), and flags override both. Every error names the
file and line, or the variable, and the key, the value and what is allowed.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from backend.engines import ENGINES, FILE_LOG, KAFKA
from backend.file_log import FileLogOptions
from backend.kafka.options import KafkaOptions
from backend.records import Durability
from ddmq.address import ADMIN, CONSUMER, LOOPBACK, PRODUCER, HostPort, is_loopback, parse
from ddmq.server.retired_keys import RetiredKey, remove_retired
from ddmq.server.setting_keys import (
    SettingKey,
    find_source,
    find_variables,
    is_variable,
    list_keys,
    override_key,
)
from ddmq_common import names
from ddmq_common.config import ConfigLocation, LocatedMapping, build, name_sources, read, resolved, rules
from ddmq_common.delays.levels import wait_text as shown_wait
from ddmq_common.errors import ConfigError
from ddmq_common.security.settings import SecurityConfig, TlsMode
from ddmq_rpc.server import RpcLimits
from delay_service.config import DelayConfig
from proxy_consumer.config import ConsumerConfig, GroupsFile
from proxy_producer.config import ProducerConfig

T = TypeVar("T")
PROCESS_NAME_MAX = 200
BACKUPS = "backups"  # in data_dir
ENTRIES_LOGGED_MAX = 10
ENVIRONMENT = Path("environment")  # in place of a file that does not exist


@dataclass(frozen=True)
class SamplesConfig:
    """The section `samples` of conf/ddmq.yaml: how sample files for the report and the Spark job are
    written."""

    enabled: bool = True
    dir: Path | None = None  # None: metrics/ in data_dir
    interval_ms: int = field(default=10_000, metadata=rules(low=100, high=3_600_000))
    keep_days: int = field(default=90, metadata=rules(low=1, high=36_500))
    bytes_max: int = field(default=10 << 30, metadata=rules(low=1 << 20))


@dataclass(frozen=True)
class ServeConfig:
    """The settings of conf/ddmq.yaml: the listen addresses of the components, and how they stop."""

    data_dir: Path = Path("data")
    producer: str = str(PRODUCER)
    consumer: str = str(CONSUMER)
    admin: str = str(ADMIN)
    admin_socket: Path | None = None  # a Unix socket of the admin API, besides `admin`
    admin_socket_mode: str = field(default="0600", metadata=rules(choices=("0600", "0660")))
    insecure: bool = False  # whether other machines may be let in where security.yaml does not protect a port
    beyond_loopback: bool = False  # the name of `insecure` in the previous release
    admin_names: tuple[str, ...] = ()  # further names by which the admin port is reached
    drain_ms: int = field(default=10_000, metadata=rules(low=0, high=600_000))
    log_level: str = field(default="info", metadata=rules(choices=("debug", "info", "warning", "error")))
    log_format: str = field(default="text", metadata=rules(choices=("text", "json")))
    process_name: str = ""  # "": the components, the machine and the admin port
    backup_dir: Path | None = None  # None: backups/ in data_dir
    samples: SamplesConfig = field(default_factory=SamplesConfig)
    trace_bytes_per_day: int = field(default=1 << 30, metadata=rules(low=1 << 20, high=1 << 50))

    @property
    def backups(self) -> Path:
        """The folder in which backups of pending messages are created."""
        return self.backup_dir or self.data_dir / BACKUPS

    def __post_init__(self) -> None:
        if len(self.process_name) > PROCESS_NAME_MAX or not self.process_name.isprintable():
            raise ValueError(
                f"process_name is {self.process_name!r}; "
                f"allowed: up to {PROCESS_NAME_MAX} printable characters"
            )
        for name in ("producer", "consumer", "admin"):
            try:
                parse(getattr(self, name))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error

    def listen_address(self, component: str) -> HostPort:
        """The listen address of `producer`, `consumer` or `admin`."""
        return parse(getattr(self, component))

    def build_process_name(self, components: Iterable[str], machine: str) -> str:
        """Return this process's name in the sample files: the same at every start of the same command."""
        admin = self.listen_address("admin").port
        component_names = "+".join(component for component in components if component != "admin")
        return self.process_name or f"{component_names}@{machine}" + (f":{admin}" if admin else "")


@dataclass(frozen=True)
class BackendConfig:
    """The settings of conf/backend.yaml: the storage engine. The file log's own settings are in
    file_log.yaml."""

    engine: str = field(default=FILE_LOG, metadata=rules(choices=ENGINES))
    kafka: KafkaOptions = field(default_factory=KafkaOptions)
    options: Mapping[str, str] = field(default_factory=dict, metadata=rules(secret=True))  # of other engines

    def engine_options(self, file_log: FileLogOptions) -> Any:
        """Return the settings of the configured engine; for the file log, those are `file_log`."""
        return {FILE_LOG: file_log, KAFKA: self.kafka}.get(self.engine, self.options)


@dataclass(frozen=True)
class TopicEntry:
    """A topic in conf/topics.yaml. The command line cannot change it, and names the file in its refusal."""

    queues: int = field(default=names.QUEUES_DEFAULT, metadata=rules(low=1, high=1024))
    durability: str = field(default="sync", metadata=rules(choices=("sync", "written", "replicated")))
    readable: bool = True
    writable: bool = True
    delay: str = field(default="both", metadata=rules(choices=("both", "none", "only")))
    delay_dialects: tuple[str, ...] = field(default=(), metadata=rules(choices=names.DELAY_DIALECTS))
    body_bytes_max: int | None = field(default=None, metadata=rules(low=1, high=1 << 30))
    replication_factor: int | None = field(default=None, metadata=rules(low=1, high=32_767))  # Kafka alone
    min_insync: int | None = field(default=None, metadata=rules(low=1, high=32_767))
    retention_ms: int | None = field(default=None, metadata=rules(low=-1, high=1 << 62))


@dataclass(frozen=True)
class TopicsConfig:
    """The settings of conf/topics.yaml."""

    topics: Mapping[str, TopicEntry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.topics:
            error = names.find_topic_name_error(name)
            if error is None and names.is_internal(name):
                error = f"topic {name!r} belongs to the system, which makes it when it is needed"
            if name == names.HEARTBEAT_TOPIC:
                error = f"topic {name!r} is for heartbeats, which nothing stores; choose another name"
            if error:
                raise ValueError(f"topics: {error}")


@dataclass(frozen=True)
class Configuration:
    """The configuration of a server process: every file, and flags."""

    serve: ServeConfig = field(default_factory=ServeConfig)
    rpc: RpcLimits = field(default_factory=RpcLimits)
    backend: BackendConfig = field(default_factory=BackendConfig)
    log: FileLogOptions = field(default_factory=FileLogOptions)
    producer: ProducerConfig = field(default_factory=ProducerConfig)
    consumer: ConsumerConfig = field(default_factory=ConsumerConfig)
    delay: DelayConfig = field(default_factory=DelayConfig)
    topics: TopicsConfig = field(default_factory=TopicsConfig)
    groups: GroupsFile = field(default_factory=GroupsFile)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    folder: Path | None = None
    flags: frozenset[str] = frozenset()  # keys of `serve` that the command line set
    backend_flags: Mapping[str, str] = field(
        default_factory=dict
    )  # `engine` and `bootstrap` of the command line
    sources: Mapping[str, str] = field(default_factory=dict)  # FILE.KEY → where its value is set, if it is
    retired: tuple[RetiredKey, ...] = ()  # in the files, ignored

    def __post_init__(self) -> None:
        longest, retention_ms = self.delay.table.waits[-1], self.log.retention.age_ms
        if self.backend.engine == FILE_LOG and longest >= retention_ms:
            raise ConfigError(
                f"delay_service.yaml: levels: the last is {shown_wait(longest)}, but retention.age_ms in "
                f"file_log.yaml keeps messages for {shown_wait(retention_ms)}; "
                "allowed: levels shorter than that"
            )

    def check_reach(self, components: Iterable[str]) -> None:
        """Raise ConfigError if other machines could reach one of these components, security.yaml does not
        protect it, and the configuration does not allow that explicitly."""
        if self.serve.insecure or self.serve.beyond_loopback:
            return
        for component in components:
            address = self.serve.listen_address(component)
            weakness = self.find_weakness(component)
            if weakness and not is_loopback(address.host):
                raise ConfigError(
                    f"--{component} {address} is not loopback, and {weakness}; run `ddmq secure init "
                    "--host NAME` (docs/security.md), or give --insecure (insecure: true in ddmq.yaml) if "
                    f"only those reach the address who may do everything, else listen on {LOOPBACK}"
                )

    def find_weakness(self, component: str) -> str:
        """Return why others must not reach the port of a component; "" if security.yaml protects it."""
        if self.security.identities is None:
            return "security.yaml has no identities: whoever reaches it can read, send and delete everything"
        if self.security.tls.mode_of(component) is TlsMode.OFF:
            return (
                f"security.yaml has `tls.{component}: off`: others can read what passes, and no client can "
                "log in"
            )
        return ""


FILES: dict[str, tuple[str, type[Any]]] = {
    "serve": ("ddmq.yaml", ServeConfig),
    "rpc": ("rpc.yaml", RpcLimits),
    "backend": ("backend.yaml", BackendConfig),
    "log": ("file_log.yaml", FileLogOptions),
    "producer": ("proxy_producer.yaml", ProducerConfig),
    "consumer": ("proxy_consumer.yaml", ConsumerConfig),
    "delay": ("delay_service.yaml", DelayConfig),
    "topics": ("topics.yaml", TopicsConfig),
    "groups": ("groups.yaml", GroupsFile),
    "security": ("security.yaml", SecurityConfig),
}
KEYS: tuple[SettingKey, ...] = tuple(list_keys(FILES))
DECLARED = ("topics", "groups")  # what exists by configuration, not settings of a component
DURABILITY = {
    "sync": Durability.DURABLE,
    "written": Durability.WRITTEN,
    "replicated": Durability.REPLICATED,
}
DURABILITY_WORDS = {durability: word for word, durability in DURABILITY.items()}


def load_folder(folder: Path | None, environment: Mapping[str, str] = os.environ) -> Configuration:
    """Read all files of a configuration folder, and override them with the variables of the environment.
    Raises ConfigError. Without a folder and variables, the result is the defaults."""
    if folder is not None and not folder.is_dir():
        raise ConfigError(
            f"--config {folder} is not a folder; give one with any of ddmq.yaml, topics.yaml, …"
        )
    trees = {} if folder is None else _read_trees(folder)
    retired = [key for path, tree in trees.values() for key in remove_retired(path, tree)]
    for key, text in find_variables(environment, KEYS).items():
        tree = trees.setdefault(key.section, (ENVIRONMENT, LocatedMapping({}, {})))[1]
        override_key(tree, key, text)
    sections = {
        section: build(FILES[section][1], tree, _section_location(section, path))
        for section, (path, tree) in trees.items()
    }
    sources = {
        key.name: source
        for key in KEYS
        if key.section in trees and (source := find_source(trees[key.section][1], key, trees[key.section][0]))
    }
    if "security" in sections:
        sections["security"] = _resolve_security_paths(sections["security"], folder, sources)
        if sections["security"].identities is not None and "backend.kafka.topics" not in sources:
            sections["backend"] = _admit_no_topics(sections.get("backend", BackendConfig()))
    try:
        config = Configuration(**sections, folder=folder, sources=sources, retired=tuple(retired))
        check_groups(config)
    except ConfigError as error:
        names = "".join(name_sources(tree, str(error)) for _, tree in trees.values())
        raise ConfigError(f"{error}{names}") from error
    return config


def _admit_no_topics(backend: BackendConfig) -> BackendConfig:
    """Return the settings without topics of other programs: with rights on, each must be admitted by name,
    because clients reach it with the rights that the proxy has on the cluster."""
    return dataclasses.replace(backend, kafka=dataclasses.replace(backend.kafka, topics=()))


def _resolve_security_paths(
    security: SecurityConfig, folder: Path | None, sources: Mapping[str, str]
) -> SecurityConfig:
    """Return the settings with paths of the file below its folder, and paths of variables as they are."""

    def folder_of(key: str) -> Path:
        from_variable = folder is None or is_variable(sources.get(f"security.{key}", ""))
        return Path() if from_variable else cast(Path, folder)

    return security.resolve_paths(folder_of)


def _section_location(section: str, path: Path) -> ConfigLocation:
    return ConfigLocation(str(path), FILES[section][0].removesuffix(".yaml") if path is ENVIRONMENT else "")


def _read_trees(folder: Path) -> dict[str, tuple[Path, Any]]:
    """Return the path and the parsed content of each existing file, by section."""
    _check_names(folder)
    paths = {section: folder / name for section, (name, _) in FILES.items()}
    return {section: (path, read(path)) for section, path in paths.items() if path.exists()}


def find_declaring_source(config: Configuration, section: str) -> str:
    """Return the file, or the variable, that declares the `topics` or `groups`; "" if neither does."""
    variable = config.sources.get(f"{section}.{section}", "")
    if is_variable(variable):
        return variable
    return str(config.folder / FILES[section][0]) if config.folder else ""


def _check_names(folder: Path) -> None:
    """Reject a file whose name is close to that of a known file, because it would not be read. Raises
    ConfigError."""
    file_names = {name.removesuffix(".yaml"): name for name, _ in FILES.values()} | {"slo": "slo.yaml"}
    for path in sorted(folder.iterdir()):
        if path.suffix in (".yaml", ".yml") and path.name not in file_names.values():
            near = difflib.get_close_matches(path.stem, file_names, n=1, cutoff=0.8)
            if near and not (folder / file_names[near[0]]).exists():
                raise ConfigError(f"{path} is not read; did you mean {file_names[near[0]]}?")


def check_groups(config: Configuration) -> None:
    """Check that groups.yaml is consistent with `defaults` in proxy_consumer.yaml. Raises ConfigError."""
    for entry in config.groups.groups.values():
        for subscription in entry.topics.values():
            subscription.apply_to(config.consumer.defaults)


def with_flags(config: Configuration, **flags: Any) -> Configuration:
    """Return the configuration with the addresses, the directory and the engine of the command line, which
    override the files. Raises ConfigError for brokers without their engine."""
    overrides = {key: value for key, value in flags.items() if value is not None}
    of_backend: dict[str, str] = {
        key: overrides.pop(key) for key in ("engine", "bootstrap") if key in overrides
    }
    config = override_backend(config, of_backend)
    for component in ("producer", "consumer", "admin"):
        if component in overrides:
            overrides[component] = str(overrides[component])
    serve = dataclasses.replace(config.serve, **overrides)
    return dataclasses.replace(config, serve=serve, flags=frozenset(overrides))


def override_backend(config: Configuration, flags: Mapping[str, str]) -> Configuration:
    """Return the configuration with the command line's `engine` and `bootstrap`. Raises ConfigError."""
    engine, kafka = flags.get("engine", config.backend.engine), config.backend.kafka
    if "bootstrap" in flags:
        if engine != KAFKA:
            raise ConfigError(
                f"--bootstrap {flags['bootstrap']} is for --backend kafka; the backend is {engine}"
            )
        kafka = dataclasses.replace(kafka, bootstrap=flags["bootstrap"])
    backend = dataclasses.replace(config.backend, engine=engine, kafka=kafka)
    return dataclasses.replace(config, backend=backend, backend_flags=dict(flags))


def resolved_values(config: Configuration) -> dict[str, Any]:
    """Return the values in force, with secrets masked."""
    return {section: resolved(getattr(config, section)) for section in FILES if section not in DECLARED}


def changed_values(config: Configuration) -> dict[str, Any]:
    """Return the values that differ from the defaults, by `section.key`, with secrets masked."""
    before, now = resolved_values(Configuration()), resolved_values(config)
    return {
        f"{section}.{key}": _shorten_value(value)
        for section, values in now.items()
        for key, value in values.items()
        if before[section][key] != value
    }


def _shorten_value(value: Any) -> Any:
    """Return a value for one line of the log; of a long mapping only its size."""
    if isinstance(value, Path):
        return str(value)
    return (
        f"{len(value)} entries" if isinstance(value, Mapping) and len(value) > ENTRIES_LOGGED_MAX else value
    )
