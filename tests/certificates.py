"""Certificates for tests: authorities, and certificates of servers and clients as PEM files."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVER = ExtendedKeyUsageOID.SERVER_AUTH
CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
ATTRIBUTES = {
    "CN": NameOID.COMMON_NAME,
    "O": NameOID.ORGANIZATION_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "DC": NameOID.DOMAIN_COMPONENT,
    "UID": NameOID.USER_ID,
}


def name_of(subject: dict[str, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(ATTRIBUTES[k], value) for k, value in subject.items()])


class Authority:
    """A certificate authority. `ca` is the file with its certificate."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._name = name_of({"CN": name})
        self._key = ec.generate_private_key(ec.SECP256R1())
        limits = x509.BasicConstraints(ca=True, path_length=None)
        certificate = self._build(self._name, self._key).add_extension(limits, critical=True)
        self.ca = str(directory / f"{name}.pem")
        Path(self.ca).write_bytes(self._sign(certificate))

    def issue(
        self,
        name: str,
        usage: x509.ObjectIdentifier = CLIENT,
        *,
        dns: str | None = None,
        uri: str | None = None,
        days: int = 2,
        **subject: str,
    ) -> tuple[str, str]:
        """Write a certificate and its key; return the names of the files."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.IPAddress(ip_address("127.0.0.1"))]
        names += [x509.DNSName(dns)] if dns else []
        names += [x509.UniformResourceIdentifier(uri)] if uri else []
        builder = (
            self._build(name_of(subject or {"CN": name}), key, days)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        )
        cert, key_file = self._directory / f"{name}.cert.pem", self._directory / f"{name}.key.pem"
        cert.write_bytes(self._sign(builder))
        key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return str(cert), str(key_file)

    def _build(self, subject: x509.Name, key: Any, days: int = 2) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        start = now - timedelta(days=1 if days > 0 else 9)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(now + timedelta(days=days))
        )

    def _sign(self, builder: x509.CertificateBuilder) -> bytes:
        return builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
