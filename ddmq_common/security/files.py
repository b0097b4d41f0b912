"""The files of a server's rights: conf/security.yaml, and beside it the hashes of its tokens.

Every process reads both at its start and checks twice a second whether they have changed. A broken file
changes nothing: the rules before it stay in force, and the log has the reason. So does a file that every user
of the machine may write. `ddmq auth token` writes the
table of tokens atomically. When a token was last used is the time of change of a file named by its id, in a
folder beside the table: touched at most once an hour, if the folder can be written.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ddmq_common.config import load
from ddmq_common.errors import ConfigError
from ddmq_common.security.callers import CallerTable
from ddmq_common.security.policy import Policy
from ddmq_common.security.settings import SecurityConfig
from ddmq_common.security.tokens import StoredToken, decode_tokens, encode_tokens

SECURITY_FILE = "security.yaml"
TOKENS_FILE = "security.tokens.json"
USED_FOLDER = "security.tokens.used"
CHECK_INTERVAL_S = 0.5
FILE_BYTES_MAX = 64 << 20
USE_RECORDED_S = 3600.0
log = logging.getLogger("ddmq.security")
_FileVersion = tuple[int, int, int, int]


def read_tokens(path: Path) -> dict[str, StoredToken]:
    """Read the table of tokens; a file that does not exist is an empty table. Raises ConfigError."""
    try:
        status = path.stat()
        if status.st_size > FILE_BYTES_MAX:
            raise ConfigError(f"{path}: has more than {FILE_BYTES_MAX} bytes")
        _check_writers(path, status)
        return decode_tokens(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def write_tokens(path: Path, tokens: Mapping[str, StoredToken]) -> None:
    """Replace the table of tokens atomically; the new file has the owner of the old one and mode 0600. Raises
    ConfigError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(encode_tokens(tokens))
            file.flush()
            os.fsync(descriptor)
            with suppress(OSError):  # a table of another user stays readable to him, if we may give it away
                owner = path.stat()
                if owner.st_uid != os.geteuid():
                    os.fchown(descriptor, owner.st_uid, owner.st_gid)
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextmanager
def change_tokens(folder: Path) -> Iterator[dict[str, StoredToken]]:
    """Lock the table of tokens of a folder, and write it at the end of the context unless that fails. Blocks.
    Raises ConfigError."""
    path = folder / TOKENS_FILE
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tokens = read_tokens(path)
        yield tokens
        write_tokens(path, tokens)
    finally:
        os.close(lock)


def read_secret(path: Path) -> bytes:
    """Read a file with one token. Raises ConfigError, without the token, if others may read the file."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & 0o077:
                raise ConfigError(f"{path}: others may read it; run: chmod 600 {path}")
            return file.read(4096).strip()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error


class LoadedRights(NamedTuple):
    """The rights of one reading of the files."""

    policy: Policy
    tokens: Mapping[str, StoredToken]
    node_token: Path | None


def load_rights(folder: Path) -> LoadedRights | None:
    """Read the rights of a configuration folder; None if they are off. Raises ConfigError."""
    path = folder / SECURITY_FILE
    try:
        _check_writers(path, path.stat())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    config = load(path, SecurityConfig).resolve_paths(lambda _: folder)
    policy = config.build_policy()
    if policy is None:
        return None
    return LoadedRights(policy, read_tokens(folder / TOKENS_FILE), config.node_token)


def _check_writers(path: Path, status: os.stat_result) -> None:
    """Raise ConfigError if every user of the machine may write a file that says who may do what."""
    if status.st_mode & 0o002:
        mode = f"{status.st_mode & 0o777:04o}"
        raise ConfigError(f"{path}: has mode {mode}: others may write it; run: chmod o-w {path}")


class SecurityFiles:
    """Keeps a table of callers up to date with the files of a folder. `error`: why the newest files are not
    in force; "" if they are."""

    def __init__(self, folder: Path, table: CallerTable, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self._paths = (folder / SECURITY_FILE, folder / TOKENS_FILE)
        self._table = table
        self._clock = clock
        self._versions: list[_FileVersion | None] = [None, None]
        self._used: dict[str, float] = {}
        self._node_token: Path | None = None
        self.error = ""

    def start(self) -> None:
        """Read the files. Raises ConfigError if they are wrong or have no identities."""
        versions = self._read_versions()
        rights = load_rights(self.folder)
        if rights is None:
            raise ConfigError(f"{self._paths[0]}: identities is missing")
        self._apply_rights(rights, versions)

    def check(self) -> None:
        """Apply the files if they have changed, and record which tokens were used. A timer calls this."""
        versions = self._read_versions()
        if versions != self._versions:
            self._versions = versions
            try:
                rights = load_rights(self.folder)
                if rights is None:
                    raise ConfigError(
                        f"{self._paths[0]}: has no identities any more; to switch rights off, restart"
                    )
            except ConfigError as error:
                self.error = str(error)
                log.error("security files are not used; what was in force stays", extra={"error": self.error})
            else:
                self._apply_rights(rights, versions)
                log.info("security files applied", extra={"identities": len(rights.policy.identities)})
        self._table.expire_tokens()
        self._record_use()

    def read_node_token(self) -> bytes:
        """Return the token with which this process logs in at the others; b"" if there is none. Raises
        ConfigError."""
        return b"" if self._node_token is None else read_secret(self._node_token)

    def _apply_rights(self, rights: LoadedRights, versions: list[_FileVersion | None]) -> None:
        self._versions, self._node_token, self.error = versions, rights.node_token, ""
        self._table.apply(rights.policy, rights.tokens)

    def _read_versions(self) -> list[_FileVersion | None]:
        return [_version_of(path) for path in self._paths]

    def _record_use(self) -> None:
        used, self._table.used_tokens = self._table.used_tokens, set()
        now = self._clock()
        for token_id in used:
            if now - self._used.get(token_id, float("-inf")) < USE_RECORDED_S:
                continue
            self._used[token_id] = now
            with suppress(OSError):  # the folder of the configuration may be read-only
                folder = self.folder / USED_FOLDER
                folder.mkdir(mode=0o700, exist_ok=True)
                (folder / token_id).touch(mode=0o600)


def last_uses_ms(folder: Path, token_ids: Iterable[str]) -> dict[str, int]:
    """Return when each of these tokens was last used, in epoch milliseconds and to the hour; tokens that were
    not used, or whose use could not be recorded, are missing. Blocks."""
    uses = {}
    for token_id in token_ids:
        with suppress(OSError):
            uses[token_id] = (folder / USED_FOLDER / token_id).stat().st_mtime_ns // 1_000_000
    return uses


def _version_of(path: Path) -> _FileVersion | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_mode
