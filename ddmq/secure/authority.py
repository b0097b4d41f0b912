"""The certificates of an installation: its own CA, and what the CA signs. Pure; times are arguments.

Keys are EC P-256: a TLS handshake with one takes about half the processor time of RSA. Certificates are valid
for 90 days, the CA for 10 years. `cryptography` is imported by this module alone.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 90
CLOCK_SKEW = datetime.timedelta(hours=1)  # of the machines that check a new certificate
SERVER_USES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
CLIENT_USES = (ExtendedKeyUsageOID.CLIENT_AUTH,)
_COMMON_NAME_MAX = 64


class KeyPair(NamedTuple):
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "KeyPair(…)"


def make_authority(name: str, now: datetime.datetime) -> KeyPair:
    """Make a CA, which signs certificates of clients and servers and no further CAs."""
    key = ec.generate_private_key(ec.SECP256R1())
    authority = _build_name(name)
    builder = (
        _build_certificate(authority, authority, key.public_key(), now, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_build_key_usage(signs_certificates=True), critical=True)
    )
    return _encode_pair(builder.sign(key, hashes.SHA256()), key)


def issue_certificate(
    authority: KeyPair,
    name: str,
    alternatives: Iterable[x509.GeneralName],
    uses: Iterable[x509.ObjectIdentifier],
    now: datetime.datetime,
) -> KeyPair:
    """Make a key and its certificate, signed by `authority`."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer, issuer_key = _load_pair(authority)
    builder = (
        _build_certificate(_build_name(name), issuer.subject, key.public_key(), now, CERTIFICATE_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_build_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(list(uses)), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(alternatives)), critical=False)
        .add_extension(_identify_issuer(issuer), critical=False)
    )
    return _encode_pair(builder.sign(issuer_key, hashes.SHA256()), key)


def renew_certificate(
    authority: KeyPair, certificate: bytes, further: Iterable[x509.GeneralName], now: datetime.datetime
) -> bytes:
    """Return a certificate for the same key, name and uses, with `further` names, valid from now on. Raises
    ValueError if `authority` has not signed the old one."""
    old = x509.load_pem_x509_certificate(certificate)
    issuer, issuer_key = _load_pair(authority)
    if old.issuer != issuer.subject or not _has_signed(issuer, old):
        raise ValueError("was not signed by this CA")
    public_key = old.public_key()
    assert isinstance(public_key, ec.EllipticCurvePublicKey)
    builder = _build_certificate(old.subject, issuer.subject, public_key, now, CERTIFICATE_DAYS)
    for extension in old.extensions:
        value = extension.value
        if isinstance(value, x509.SubjectAlternativeName):
            value = x509.SubjectAlternativeName(list(dict.fromkeys((*value, *further))))
        if not isinstance(value, x509.SubjectKeyIdentifier):
            builder = builder.add_extension(value, extension.critical)
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def parse_host(host: str) -> x509.GeneralName:
    """Return a host name or IP address as certificates state it. Raises ValueError."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def name_identity(identity: str) -> x509.GeneralName:
    """Return the alternative name that logs a certificate in as an identity of security.yaml."""
    return x509.UniformResourceIdentifier(f"ddmq:{identity}")


def _load_pair(pair: KeyPair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = serialization.load_pem_private_key(pair.key, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key of the CA is no EC key")
    return x509.load_pem_x509_certificate(pair.certificate), key


def _has_signed(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except Exception:  # InvalidSignature, ValueError, TypeError: whatever is wrong, it was not
        return False
    return True


def _build_certificate(
    name: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _build_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_COMMON_NAME_MAX])])


def _build_key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _identify_issuer(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def _encode_pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
