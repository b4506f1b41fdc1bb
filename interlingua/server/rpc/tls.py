"""TLS for gRPC, out of the same files as HTTPS, read again for handshakes after they change."""

from __future__ import annotations

import contextlib
from pathlib import Path

import grpc

from interlingua.contract.errors import ModelError
from interlingua.server.settings import ServerSettings


def credentials(settings: ServerSettings) -> grpc.ServerCredentials | None:
    """None = plain text. The files were checked when HTTPS read them. Raises ModelError for what gRPC cannot do."""
    if settings.tls_certificate is None:
        return None
    for name in ("tls_key_password_file", "tls_crl"):
        if getattr(settings, name):
            flag = "--" + name.replace("_", "-")
            raise ModelError(f"`{flag}` does not work with `--grpc-port`: gRPC's TLS has no such thing")
    last = _read(settings)

    def newest() -> grpc.ServerCertificateConfiguration:
        nonlocal last
        with contextlib.suppress(OSError):  # what was read before stays in force
            last = _read(settings)
        return last

    return grpc.dynamic_ssl_server_credentials(last, newest, bool(settings.tls_client_ca))


def _read(settings: ServerSettings) -> grpc.ServerCertificateConfiguration:
    assert settings.tls_certificate is not None and settings.tls_key is not None
    chain = Path(settings.tls_certificate).read_bytes()
    key = Path(settings.tls_key).read_bytes()
    roots = b"".join(Path(path).read_bytes() for path in settings.tls_client_ca)
    return grpc.ssl_server_certificate_configuration([(key, chain)], roots or None)
