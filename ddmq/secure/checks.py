"""The checks of `ddmq doctor` about security.yaml: certificates, their remaining days, insecure settings."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ddmq.address import COMPONENTS, is_loopback
from ddmq.check_result import FAILED, OK, WARNING, CheckResult
from ddmq_common.errors import ConfigError
from ddmq_common.security.certificate_dates import read_expiries
from ddmq_common.security.certificates import build_contexts
from ddmq_common.security.settings import PORTS, TlsConfig

if TYPE_CHECKING:
    from ddmq.server.config import Configuration

RENEW_DAYS = 21  # before the end
AUTHORITY_KEY = "ca.key"  # of `ddmq secure init`
RENEW = "run: ddmq secure renew --dir {0} (or have your CA renew it)"


def check_security(config: Configuration) -> Iterator[CheckResult]:
    """Yield what is insecure in the configuration, and the state of its certificates."""
    yield from check_certificates(config.security.tls)
    yield from _check_reach(config)
    yield from _check_rules(config)


def check_certificates(tls: TlsConfig, now: datetime.datetime | None = None) -> Iterator[CheckResult]:
    """Check that the certificate files of security.yaml can be used, and for how long."""
    if tls.certificate is None and tls.server_authority is None:
        return
    try:
        build_contexts(tls)
    except ConfigError as error:
        problem, _, remedy = str(error).partition("; ")
        yield CheckResult("certificates", FAILED, problem, remedy)
        return
    modes = ", ".join(f"{port} {tls.mode_of(port)}" for port in PORTS)
    yield CheckResult("certificates", OK, f"{tls.certificate}; TLS: {modes}")
    now = now or datetime.datetime.now(datetime.UTC)
    for path in dict.fromkeys((tls.certificate, tls.client_ca, tls.server_ca)):
        if path is not None:
            yield _check_expiry(path, now)


def _check_expiry(path: Path, now: datetime.datetime) -> CheckResult:
    """Check the certificate in a file that expires first."""
    try:
        end = min(read_expiries(path.read_bytes()))
    except (OSError, ValueError) as error:
        return CheckResult("certificate", WARNING, f"{path}: {error}", "give a PEM file of certificates")
    days = (end - now).days
    if end <= now:
        return CheckResult(
            "certificate", FAILED, f"{path} expired {-days} days ago", RENEW.format(path.parent)
        )
    summary = f"{path} expires in {days} days"
    if days < RENEW_DAYS:
        return CheckResult("certificate", WARNING, summary, RENEW.format(path.parent))
    return CheckResult("certificate", OK, summary)


def _check_reach(config: Configuration) -> Iterator[CheckResult]:
    """Check that no port that other machines reach is open to everybody."""
    permitted = config.serve.insecure or config.serve.beyond_loopback
    for component in COMPONENTS:
        address = config.serve.listen_address(component)
        weakness = config.find_weakness(component)
        if not weakness or is_loopback(address.host):
            continue
        yield CheckResult(
            "security",
            WARNING if permitted else FAILED,
            f"{component} {address}: {weakness}" + ("; `insecure` permits it" if permitted else ""),
            "run: ddmq secure init --host NAME (docs/security.md)",
        )


def _check_rules(config: Configuration) -> Iterator[CheckResult]:
    for network, identity in config.security.legacy.items():
        yield CheckResult(
            "security",
            WARNING,
            f"whoever sends from {network} is {identity}, without a login",
            "give it few rights, and remove it from `legacy` when its clients can log in",
        )
    if config.folder is not None and (key := config.folder / AUTHORITY_KEY).exists():
        yield CheckResult(
            "security",
            WARNING,
            f"{key} can make certificates of administrators, and a server does not need it",
            "move it to a safe place; copy it back for `ddmq secure renew`",
        )
