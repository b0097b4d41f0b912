"""Which engines there are, and how one is opened: those of this package, and those that others register.

An installed package adds an engine under the entry point group `ddmq.backends`. Its pyproject.toml says

    [project.entry-points."ddmq.backends"]
    my_log = "my_package.engine:open_engine"

and `open_engine(settings)` gets an EngineSettings and returns a Backend, ready for appends. It may block its
greenlet; while it waits for other machines it calls `settings.on_waiting(reason)`. Errors are those of
ddmq_common.errors. backend/testing has the tests that every engine must pass, whoever writes it.

The bundled engines are known without any metadata, so that a source tree serves without being installed. A
registered engine cannot replace one of them. Nothing is imported before an engine is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ddmq_common.errors import ConfigError

if TYPE_CHECKING:  # the command line asks for names alone, and its help should come at once
    from importlib.metadata import EntryPoint
    from pathlib import Path

    from backend.port import Backend
    from ddmq_common.clock import Clock
    from ddmq_common.metrics.registry import Registry

GROUP = "ddmq.backends"
FILE_LOG, KAFKA = "file_log", "kafka"


class EngineSettings(NamedTuple):
    """The settings with which an engine is opened.

    `data_dir`: for what it keeps on this machine; not made yet. `options`: of the file log FileLogOptions, of
    Kafka KafkaOptions, of any other engine the mapping under `options` in backend.yaml. `on_waiting(reason)`
    is called repeatedly while other machines are waited for; it may raise SystemExit to give up.
    """

    data_dir: Path
    clock: Clock
    metrics: Registry
    options: Any
    on_waiting: Callable[[str], object]


OpenEngine = Callable[[EngineSettings], "Backend"]


def _open_file_log(settings: EngineSettings) -> Backend:
    from backend.file_log import open_shared

    return open_shared(settings.data_dir, settings.options, clock=settings.clock, metrics=settings.metrics)


def _open_kafka(settings: EngineSettings) -> Backend:
    from backend.kafka.opening import open_kafka

    return open_kafka(
        settings.options,
        clock=settings.clock,
        data_dir=settings.data_dir,
        metrics=settings.metrics,
        on_waiting=settings.on_waiting,
    )


BUNDLED: dict[str, OpenEngine] = {FILE_LOG: _open_file_log, KAFKA: _open_kafka}
EXTRAS = {
    KAFKA: "pip install '.[kafka]'"
}  # what brings the packages that an engine needs, in the source tree


@cache
def registered_engines() -> dict[str, EntryPoint]:
    """Return the entry points of engines that installed packages register, by name."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP) if point.name not in BUNDLED}


class EngineNames(Collection[str]):
    """The collection of all engine names: those bundled with ddmq, and those that installed packages
    register.

    The metadata of installed packages is read only if a name is not a bundled one.
    """

    def __contains__(self, name: object) -> bool:
        return name in BUNDLED or name in registered_engines()

    def __iter__(self) -> Iterator[str]:
        return iter([*BUNDLED, *sorted(registered_engines())])

    def __len__(self) -> int:
        return len(BUNDLED) + len(registered_engines())


ENGINES = EngineNames()


def open_engine(name: str, settings: EngineSettings) -> Backend:
    """Open an engine by its name. Raises ConfigError for one that is unknown or cannot be imported."""
    if name not in ENGINES:
        raise ConfigError(f"there is no engine {name!r}; allowed: {', '.join(ENGINES)}")
    try:
        opener = BUNDLED[name] if name in BUNDLED else _load_registered(name)
        return opener(settings)
    except ImportError as error:
        hint = f"; in the source tree: {EXTRAS[name]}" if name in EXTRAS else ""
        raise ConfigError(f"--backend {name} needs the package {error.name}{hint}") from error


def _load_registered(name: str) -> OpenEngine:
    point = registered_engines()[name]
    try:
        opener: OpenEngine = point.load()
    except AttributeError as error:
        text = f"engine {name} is registered as {point.value}, which is not there: {error}"
        raise ConfigError(text) from error
    return opener
