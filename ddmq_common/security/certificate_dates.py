"""Read the expiry date of a certificate from its PEM file. Pure.

The standard library tells this only of certificates that a connection has verified, so this module reads the
few elements of the DER encoding (X.690) in front of the validity, which RFC 5280 puts in a fixed order.
"""

from __future__ import annotations

import datetime
import re
import ssl

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
_VERSION, _UTC_TIME, _GENERALIZED_TIME = 0xA0, 0x17, 0x18


def read_expiries(pem: bytes) -> list[datetime.datetime]:
    """Return when each certificate of a PEM text expires. Raises ValueError."""
    return [_read_expiry(ssl.PEM_cert_to_DER_cert(match[0].decode())) for match in _CERTIFICATE.finditer(pem)]


def _read_expiry(der: bytes) -> datetime.datetime:
    try:
        _, start, _ = _read_element(der, 0)  # Certificate
        _, position, _ = _read_element(der, start)  # TBSCertificate
        if der[position] == _VERSION:
            _, _, position = _read_element(der, position)
        for _ in range(3):  # serial number, signature algorithm, issuer
            _, _, position = _read_element(der, position)
        _, position, _ = _read_element(der, position)  # validity
        _, _, position = _read_element(der, position)  # not before
        tag, start, end = _read_element(der, position)
    except IndexError:
        raise ValueError("is not a certificate") from None
    formats = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
    if tag not in formats:
        raise ValueError("is not a certificate")
    moment = datetime.datetime.strptime(der[start:end].decode("ascii", "replace"), formats[tag])
    if tag == _UTC_TIME and moment.year >= 2050:  # RFC 5280: 50 to 99 are of the last century
        moment = moment.replace(year=moment.year - 100)
    return moment.replace(tzinfo=datetime.UTC)


def _read_element(der: bytes, position: int) -> tuple[int, int, int]:
    """Return the tag of the element at `position`, where its content starts, and where it ends."""
    tag, length, start = der[position], der[position + 1], position + 2
    if length & 0x80:
        count = length & 0x7F
        length, start = int.from_bytes(der[start : start + count], "big"), start + count
    if start + length > len(der):
        raise ValueError("is not a certificate")
    return tag, start, start + length
