"""Opens the two sides of a move, each named as ENGINE:WHERE (`file_log:./data`, `kafka:HOST:PORT,…`).

If a server runs over a directory, the directory is used through that server, which stays its writer. If none
runs, the directory is locked until the command ends, so that no server can start there meanwhile.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import NamedTuple

from backend.engines import BUNDLED
from backend.file_log import open_log, open_shared
from backend.file_log.lock import DirectoryInUseError, DirectoryLock
from backend.port import Backend
from backend.records import CommitBatch
from ddmq.move.context import WAIT_S, MoveError, wait_for_answer
from ddmq.move.core.scope import MOVE_SETTINGS_PREFIX
from ddmq.server.config import Configuration, load_folder, override_backend
from ddmq_common.clock import Clock
from ddmq_common.errors import ConfigError, FencedError
from ddmq_common.metrics.registry import Registry

SELF = f"{MOVE_SETTINGS_PREFIX}SELF"  # setting of a source: the id by which copies name it


class MoveSide(NamedTuple):
    """The source or the target of a move. `where`: a directory, or brokers. `config`: the configuration of
    its servers."""

    engine: str
    where: str
    config: Configuration

    def __str__(self) -> str:
        return f"{self.engine}:{self.where}"


class OpenedSide(NamedTuple):
    """The opened engine of the source or the target. `exclusive`: no other process can use it meanwhile."""

    backend: Backend
    exclusive: bool


def parse_side(text: str, folder: Path | None) -> MoveSide:
    """Parse ENGINE:WHERE. `folder`: the configuration folder of the servers there. Raises ConfigError."""
    engine, _, where = text.partition(":")
    if engine not in BUNDLED or not where:
        raise ConfigError(f"{text!r} names no engine; allowed: file_log:DIRECTORY and kafka:HOST:PORT,…")
    config = load_folder(folder, {})  # a variable could not say which of the two sides it is for
    flags = {"engine": engine, "bootstrap": where} if engine == "kafka" else {"engine": engine}
    return MoveSide(engine, where, override_backend(config, flags))


def open_side(side: MoveSide, clock: Clock, *, must_exist: bool) -> OpenedSide:
    """Open the engine of one side. Raises DdmqError if it cannot be used or, with `must_exist`, is not there
    yet."""
    if side.engine == "kafka":
        try:
            from backend.kafka.opening import open_kafka
        except ImportError as error:
            raise ConfigError(
                f"{side} needs the package {error.name}; in the source tree: pip install '.[kafka]'"
            ) from error
        return OpenedSide(open_kafka(side.config.backend.kafka, clock=clock), False)
    directory = Path(side.where)
    if must_exist and not (directory / "commitlog").is_dir():
        raise MoveError(
            f"{directory} has no log: it is no data directory of `ddmq serve`, or nothing was sent"
        )
    options = side.config.log
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = DirectoryLock.acquire(directory, clock.wall_ms())
    except OSError as error:
        raise ConfigError(f"{directory} cannot be made: {error.strerror}") from error
    except DirectoryInUseError:
        shared = open_shared(directory, options, clock=clock, metrics=Registry(), may_write=False)
        return OpenedSide(shared, False)
    return OpenedSide(open_log(directory, options, clock=clock, metrics=Registry(), lock=lock), True)


def source_id(source: Backend, clock: Clock, *, make: bool) -> str:
    """Return the id under which copies refer to this source. If it has none yet, create one with `make`, else
    return ""."""
    for _ in range(3):
        value = source.setting(SELF)
        if value is not None:
            return value.decode()
        if not make:
            return ""
        batch = CommitBatch(settings={SELF: secrets.token_hex(8).encode()}, absent=(SELF,))
        try:
            wait_for_answer(source.commit(batch, clock.monotonic() + WAIT_S))
        except FencedError:
            continue
    raise MoveError("other runs of `ddmq move` of the same source keep beginning; end them")
