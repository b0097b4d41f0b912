"""The names in a client's certificate. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class CertificateNames(NamedTuple):
    """The names in a verified certificate, in its order: URIs and DNS names of its alternative names, and
    its common names."""

    uris: tuple[str, ...]
    dns_names: tuple[str, ...]
    common_names: tuple[str, ...]


def read_names(certificate: Mapping[str, Any] | None) -> CertificateNames | None:
    """Return the names in a certificate as `getpeercert` of ssl describes it; None if there is none."""
    if not certificate:
        return None
    alternatives = certificate.get("subjectAltName", ())
    return CertificateNames(
        tuple(value for kind, value in alternatives if kind == "URI"),
        tuple(value for kind, value in alternatives if kind == "DNS"),
        tuple(
            value
            for relative_name in certificate.get("subject", ())
            for key, value in relative_name
            if key == "commonName"
        ),
    )
