"""`ddmq doctor` reports the remaining days of certificates, and what is insecure."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from ddmq.check_result import FAILED, OK, WARNING, CheckResult
from ddmq.cli.doctor import run_checks
from ddmq.secure.checks import check_certificates, check_security
from ddmq.server.config import load_folder
from ddmq_common.security.certificate_dates import read_expiries
from ddmq_common.security.settings import TlsConfig
from tests.support.certificates import PEM, write_certificates

END = datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)  # of the certificates for tests
DAY = datetime.timedelta(days=1)


@pytest.fixture
def tls(tmp_path: Path) -> TlsConfig:
    folder = write_certificates(tmp_path, "ca", "server")
    return TlsConfig(folder / "server.crt", folder / "server.key", folder / "ca.crt")


def expiry_of(tls: TlsConfig, now: datetime.datetime) -> CheckResult:
    name = str(tls.certificate)
    return next(
        result
        for result in check_certificates(tls, now)
        if result.check == "certificate" and result.summary.startswith(name)
    )


@pytest.mark.parametrize(
    ("before", "status", "words"),
    [
        (90 * DAY, OK, "expires in 90 days"),
        (21 * DAY, OK, "expires in 21 days"),
        (20 * DAY, WARNING, "expires in 20 days"),
        (0 * DAY, FAILED, "expired 0 days ago"),
        (-3 * DAY, FAILED, "expired 3 days ago"),
    ],
)
def test_the_remaining_days_are_reported_with_the_remedy(
    tls: TlsConfig, before: datetime.timedelta, status: str, words: str
) -> None:
    result = expiry_of(tls, END - before)
    assert (result.status, result.summary) == (status, f"{tls.certificate} {words}")
    assert ("ddmq secure renew --dir" in result.remedy) == (status != OK)


def test_the_dates_of_all_certificates_of_a_file_are_read() -> None:
    chain = (PEM["server.crt"] + "text between\n" + PEM["expired.crt"]).encode()
    assert read_expiries(chain) == [END, datetime.datetime(2020, 2, 1, tzinfo=datetime.UTC)]
    assert read_expiries(b"nothing") == []


@pytest.mark.parametrize("length", [1, 2, 10, 50, 100])
def test_a_damaged_certificate_is_an_error(length: int) -> None:
    import ssl

    damaged = ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert(PEM["server.crt"])[:length])
    with pytest.raises(ValueError, match="is not a certificate"):
        read_expiries(damaged.encode())


def security_of(folder: Path, **files: str) -> list[CheckResult]:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return [result for result in check_security(load_folder(folder)) if result.check == "security"]


def test_an_open_port_fails_unless_it_is_permitted(tmp_path: Path) -> None:
    (result,) = security_of(tmp_path, ddmq="producer: 0.0.0.0:9613")
    assert (result.status, "ddmq secure init" in result.remedy) == (FAILED, True)
    assert result.summary.startswith("producer 0.0.0.0:9613: security.yaml has no identities")
    (permitted,) = security_of(tmp_path, ddmq="{producer: '0.0.0.0:9613', insecure: true}")
    assert permitted.status == WARNING
    assert security_of(tmp_path, ddmq="producer: 127.0.0.1:9613") == []


def test_legacy_rules_and_the_key_of_the_ca_are_reported(tmp_path: Path) -> None:
    rules = "{identities: {old: {allow: [send orders]}}, legacy: {10.1.0.0/16: old}}"
    (legacy,) = security_of(tmp_path, security=rules)
    assert legacy.summary == "whoever sends from 10.1.0.0/16 is old, without a login"
    (tmp_path / "ca.key").touch()
    assert [result.status for result in security_of(tmp_path)] == [WARNING, WARNING]
    assert "security" in {result.check for result in run_checks(tmp_path / "data", tmp_path)}
