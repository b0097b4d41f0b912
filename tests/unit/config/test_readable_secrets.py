"""A configuration file with a secret that all may read is named: at the start, and by `ddmq doctor`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddmq.check_result import FAILED
from ddmq.cli.doctor import run_checks
from ddmq.server.config import load_folder
from ddmq.server.readable_secrets import readable_secrets, warn_of_secrets

SECRET = "hunter2"
FILES = {
    "token_key": ("proxy_consumer.yaml", f"defaults: {{push: {{form: {{token_key: {SECRET}}}}}}}"),
    "signing_key": ("proxy_consumer.yaml", f"defaults: {{push: {{http: {{signing_key: {SECRET}}}}}}}"),
    "password": (
        "groups.yaml",
        f"groups: {{g: {{topics: {{t: {{push: {{redis: {{password: {SECRET}}}}}}}}}}}}}",
    ),
    "librdkafka.sasl.password": (
        "backend.yaml",
        f"engine: kafka\nkafka: {{bootstrap: 'a:1', librdkafka: {{sasl.password: {SECRET}}}}}",
    ),
    "options": ("backend.yaml", f"options: {{token: {SECRET}}}"),
    "librdkafka.ssl.key.password": (
        "backend.yaml",
        f"engine: kafka\nkafka: {{bootstrap: 'a:1', librdkafka: {{ssl.key.password: {SECRET}}}}}",
    ),
}


@pytest.fixture
def conf(tmp_path: Path) -> Iterator[Path]:
    """A folder that others can reach, in folders that pytest keeps to itself."""
    closed = [folder for folder in tmp_path.parents if not folder.stat().st_mode & 0o001]
    modes = {folder: folder.stat().st_mode for folder in (*closed, tmp_path)}
    for folder in modes:
        folder.chmod(0o755)
    folder = tmp_path / "conf"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    yield folder
    for folder, mode in modes.items():
        folder.chmod(mode)


def put(conf: Path, key: str, mode: int, secret: str = SECRET) -> Path:
    name, text = FILES[key]
    path = conf / name
    path.write_text(text.replace(SECRET, secret))
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o666, 0o755])
@pytest.mark.parametrize("key", FILES)
def test_a_file_that_all_may_read_is_named_with_mode_and_remedy(
    conf: Path, key: str, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = put(conf, key, mode)
    (secret,) = readable_secrets(load_folder(conf))
    assert secret.warning_text == f"{path} has mode {mode:04o}, so every user may read {key} in it"
    assert f"chmod 640 {path}" in secret.remedy
    with caplog.at_level(logging.WARNING, logger="ddmq.server"):
        warn_of_secrets(load_folder(conf))
    (record,) = caplog.records
    assert (record.file, record.mode, record.keys) == (path, f"{mode:04o}", key)  # type: ignore[attr-defined]
    assert SECRET not in str(record.__dict__)


@pytest.mark.parametrize("mode", [0o640, 0o600, 0o400])
@pytest.mark.parametrize("key", FILES)
def test_what_the_owner_and_the_group_read_is_fine(conf: Path, key: str, mode: int) -> None:
    put(conf, key, mode)
    assert readable_secrets(load_folder(conf)) == []


def test_a_folder_that_is_closed_to_others_keeps_its_files(conf: Path) -> None:
    put(conf, "token_key", 0o644)
    conf.chmod(0o750)
    assert readable_secrets(load_folder(conf)) == []


@pytest.mark.parametrize("key", ["token_key", "signing_key", "password"])
@pytest.mark.parametrize("value", ["file:name", "''"])
def test_the_name_of_a_secrets_file_is_no_secret(conf: Path, key: str, value: str) -> None:
    put(conf, key, 0o644, value)
    assert readable_secrets(load_folder(conf)) == []


def test_a_group_does_not_hold_the_secrets_of_the_defaults(conf: Path) -> None:
    put(conf, "token_key", 0o640)
    (conf / "groups.yaml").write_text("groups: {g: {topics: {t: {batch_max: 3}}}}")
    (conf / "groups.yaml").chmod(0o644)
    assert readable_secrets(load_folder(conf)) == []


def test_doctor_fails_the_check(conf: Path, tmp_path: Path) -> None:
    path = put(conf, "token_key", 0o644)
    ports = "".join(f"{component}: 127.0.0.1:0\n" for component in ("producer", "consumer", "admin"))
    (conf / "ddmq.yaml").write_text(f"data_dir: {tmp_path / 'log'}\n{ports}")
    (result,) = [finding for finding in run_checks(None, conf) if finding.check == "secrets"]
    assert (result.status, str(path) in result.summary, "chmod 640" in result.remedy) == (FAILED, True, True)
    path.chmod(0o640)
    assert not [finding for finding in run_checks(None, conf) if finding.check == "secrets"]


def test_the_files_of_this_project_hold_none() -> None:
    conf = Path(__file__).resolve().parents[3] / "conf"
    assert readable_secrets(load_folder(conf)) == []
