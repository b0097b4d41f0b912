"""`file:NAME` in a secret field: read where it is used, masked everywhere, of this user alone."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ddmq_common.config import resolved, rules
from ddmq_common.errors import ConfigError
from ddmq_common.private_files import SECRET_BYTES_MAX, reveal_secrets


@dataclass(frozen=True)
class Inner:
    password: str = field(default="", metadata=rules(secret=True))
    name: str = "file:name"


@dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()
    token: str = field(default="as it is", metadata=rules(secret=True))


def put(folder: Path, text: bytes, mode: int = 0o600) -> Outer:
    path = folder / "redis-password"
    path.write_bytes(text)
    path.chmod(mode)
    return Outer(Inner("file:redis-password"))


@pytest.mark.parametrize("text", [b"s3cret", b"s3cret\n"])
def test_a_secret_is_what_stands_in_its_file(tmp_path: Path, text: bytes) -> None:
    config = put(tmp_path, text)
    revealed = reveal_secrets(config, str(tmp_path))
    assert revealed == Outer(Inner("s3cret"))
    assert revealed.inner.name == "file:name", "no secret, no file"
    assert "s3cret" not in str(resolved(revealed))
    assert reveal_secrets(Outer(), "") == Outer()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match=rf"mode {mode:04o}.*chmod 400"):
        reveal_secrets(put(tmp_path, b"s3cret", mode), str(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    config = put(tmp_path, b"s3cret")
    os.chown(tmp_path / "redis-password", 65534, -1)
    with pytest.raises(ConfigError, match="belongs to user 65534"):
        reveal_secrets(config, str(tmp_path))


@pytest.mark.parametrize("name", ["", "../redis-password", "/etc/passwd", "a/b", ".", "..", ".hidden", "a\n"])
def test_only_names_in_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is no file name"):
        reveal_secrets(Outer(Inner(f"file:{name}")), str(tmp_path))


@pytest.mark.parametrize("text", [b"", b"\n", b"x" * (SECRET_BYTES_MAX + 1), b"\xff"])
def test_what_is_no_secret(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(ConfigError, match=r"empty or too long|not UTF-8"):
        reveal_secrets(put(tmp_path, text), str(tmp_path))


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        reveal_secrets(Outer(Inner("file:redis-password")), str(tmp_path))
    with pytest.raises(ConfigError, match="secrets_dir is not set"):
        reveal_secrets(Outer(Inner("file:redis-password")), "")
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="is no file"):
        reveal_secrets(Outer(Inner("file:pipe")), str(tmp_path))
