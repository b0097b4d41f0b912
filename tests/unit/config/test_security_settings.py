"""conf/security.yaml: the section tls."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddmq.server.config import load_folder
from ddmq_common.errors import ConfigError
from ddmq_common.security.settings import SecurityConfig, TlsMode


def write_settings(folder: Path, text: str) -> Path:
    (folder / "security.yaml").write_text(text)
    return folder


def test_without_the_file_nothing_is_secured(tmp_path: Path) -> None:
    assert load_folder(tmp_path, {}).security == SecurityConfig()
    assert not SecurityConfig().tls.is_used


def test_relative_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    text = "tls: {certificate: tls/a.crt, key: /etc/a.key, client_ca: ca.crt, producer: required}"
    tls = load_folder(write_settings(tmp_path, text), {}).security.tls
    assert tls.certificate == tmp_path / "tls" / "a.crt"
    assert (tls.key, tls.client_ca, tls.server_ca) == (Path("/etc/a.key"), tmp_path / "ca.crt", None)
    assert (tls.producer, tls.consumer) == (TlsMode.REQUIRED, TlsMode.OFF)
    assert tls.server_authority == tmp_path / "ca.crt"
    assert tls.is_used


def test_a_path_of_a_variable_is_as_it_is_written(tmp_path: Path) -> None:
    write_settings(tmp_path, "tls: {certificate: a.crt, key: a.key}")
    tls = load_folder(tmp_path, {"DDMQ_SECURITY__TLS__KEY": "other.key"}).security.tls
    assert (tls.certificate, tls.key) == (tmp_path / "a.crt", Path("other.key"))
    tls = load_folder(None, {"DDMQ_SECURITY__TLS__CLIENT_CA": "ca.crt"}).security.tls
    assert tls.client_ca == Path("ca.crt")


@pytest.mark.parametrize("word", ["off", '"off"', "OFF", "false"])
def test_off_may_be_written_with_and_without_quotes(tmp_path: Path, word: str) -> None:
    assert load_folder(write_settings(tmp_path, f"tls: {{admin: {word}}}"), {}).security == SecurityConfig()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("tls: {admin: maybe}", "security.yaml:1: tls.admin: is 'maybe'; allowed: off, optional, required"),
        ("tls: {admin: on}", "tls.admin: is True; allowed: off, optional, required"),
        (
            "tls: {consumer: optional}",
            "consumer is optional, which needs certificate and key; allowed: the paths of both, or off",
        ),
        ("tls: {key: a.key}", "key is set and certificate is not; allowed: both, or neither"),
        ("tls: {certificate: a.crt}", "certificate is set and key is not; allowed: both, or neither"),
        ("tls: {cert: a.crt}", "tls.cert: unknown key"),
        ("tsl: {}", "tsl: unknown key; did you mean 'tls'?"),
    ],
)
def test_an_error_says_what_is_allowed(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_folder(write_settings(tmp_path, text), {})
    assert error in str(caught.value)
