"""A test's own certificate authority, and certificates for fictitious names, made by openssl."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Authority:
    place: Path

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.place / "ca.pem")


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def authority(place: Path) -> Authority:
    key, certificate = place / "ca.key", place / "ca.pem"
    _openssl(
        "req", "-x509", *_NEW_KEY, "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=tests",
        "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign",
    )  # fmt: skip
    return Authority(place)


def server_context(issuer: Authority, name: str) -> ssl.SSLContext:
    place = issuer.place
    key, request, certificate, extensions = (place / f"{name}.{end}" for end in ("key", "csr", "pem", "ext"))
    extensions.write_text(f"subjectAltName=DNS:{name}\n")
    _openssl("req", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
    _openssl(
        "x509", "-req", "-in", request, "-CA", place / "ca.pem", "-CAkey", place / "ca.key", "-CAcreateserial",
        "-days", "2", "-extfile", extensions, "-out", certificate,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
