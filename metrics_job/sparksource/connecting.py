"""The arguments with which the driver and the executors make their clients."""

from __future__ import annotations

from typing import TypedDict

from ddmq_client import TlsOptions
from metrics_job.sparksource.options import SecurityOptions


class ClientSecurity(TypedDict):
    """The arguments of a client for TLS and its login."""

    tls: bool | TlsOptions | None
    token_file: str | None


def build_client_security(options: SecurityOptions) -> ClientSecurity:
    """Return the arguments of a client. Raises OptionError on its use if a file cannot be read."""
    tls: bool | TlsOptions | None = options.tls
    if options.tls:
        tls = TlsOptions(options.ca, options.certificate, options.key, options.server_name)
    return ClientSecurity(tls=tls, token_file=options.token_file)
