"""Security of one server process: its certificates, identities and audit log, as security.yaml says."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from ddmq.server.config import Configuration
from ddmq_common.clock import Clock
from ddmq_common.errors import ConfigError
from ddmq_common.hub_timer import HubTimer
from ddmq_common.metrics.catalogue import AUDIT_DROPPED, AUDIT_LINES, TLS_FILES_INVALID
from ddmq_common.metrics.registry import Registry
from ddmq_common.security import connecting
from ddmq_common.security.audit import FOLDER as AUDIT_FOLDER
from ddmq_common.security.audit import REJECTED, AuditFiles, AuditLog
from ddmq_common.security.callers import CallerTable
from ddmq_common.security.certificates import CHECK_S as CERTIFICATES_CHECK_S
from ddmq_common.security.certificates import CertificateFiles
from ddmq_common.security.files import CHECK_INTERVAL_S, SecurityFiles
from ddmq_common.security.sender_quotas import SENDER_QUOTAS
from ddmq_common.security.settings import TlsMode
from ddmq_rpc.server import TlsPort


class ProcessSecurity:
    """The certificates and the callers of one process, which follow their files until `close`.

    `certificates`: None if no port uses TLS. `callers`, `files`: None if rights are off.
    """

    def __init__(self, config: Configuration, metrics: Registry, clock: Clock) -> None:
        self._config = config
        self._metrics = metrics
        self._clock = clock
        self._certificates_timer = HubTimer(ref=False)
        self._files_timer = HubTimer(ref=False)
        self.certificates: CertificateFiles | None = None
        self.callers: CallerTable | None = None
        self.files: SecurityFiles | None = None

    def load_certificates(self) -> None:
        """Load the certificates of security.yaml, and reload them when their files change. Raises
        ConfigError."""
        tls = self._config.security.tls
        if tls.is_used:
            invalid = self._metrics.cell(TLS_FILES_INVALID)

            def record_outcome(is_invalid: bool) -> None:
                invalid.value = float(is_invalid)

            try:
                self.certificates = CertificateFiles(tls, record_outcome)
            except ConfigError as error:
                raise ConfigError(f"security.yaml: tls: {error}") from error
            self._certificates_timer.every(CERTIFICATES_CHECK_S, self.certificates.reload_changed)
        connecting.use_certificates(tls, self.certificates)

    def load_identities(self, components: Sequence[str]) -> None:
        """Begin to check rights if security.yaml has identities. Raises ConfigError."""
        folder, serve = self._config.folder, self._config.serve
        if folder is None or self._config.security.identities is None:
            return
        callers = self.callers = CallerTable(self._clock.wall_ms)
        callers.on_change.append(lambda: SENDER_QUOTAS.use_identities(callers.all_identities))
        self.files = SecurityFiles(folder, callers, self._clock.monotonic)
        self.files.start()
        name = serve.build_process_name(components, socket.gethostname())
        callers.audit = AuditLog(
            AuditFiles(serve.data_dir / AUDIT_FOLDER, name),
            AuditFiles(serve.data_dir / AUDIT_FOLDER, f"{name}.{REJECTED}"),
            self._clock.wall_ms,
            HubTimer(ref=False),
            self._metrics.cell(AUDIT_LINES),
            self._metrics.cell(AUDIT_DROPPED),
        )
        self._files_timer.every(CHECK_INTERVAL_S, self.files.check)

    def read_node_token(self) -> bytes:
        """Return the token with which this process logs in at the others; b"" if there is none."""
        return b"" if self.files is None else self.files.read_node_token()

    def describe_tls_port(self, component: str) -> TlsPort | None:
        """Return how the port of a component uses TLS; None if it does not."""
        mode = self._config.security.tls.mode_of(component)
        if mode is TlsMode.OFF or self.certificates is None:
            return None
        return TlsPort(self.certificates, mode is TlsMode.REQUIRED)

    def find_delay_quota(self, identity: str) -> int:
        """Return how many pending delays an identity may have; 0: no limit."""
        return 0 if self.callers is None else self.callers.at_name(identity).usage.quotas.pending_delays

    def close(self) -> None:
        """Follow the files no longer, and write what the audit log still has."""
        self._certificates_timer.stop()
        self._files_timer.stop()
        if self.callers is not None and self.callers.audit is not None:
            self.callers.audit.close()
