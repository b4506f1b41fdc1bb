"""TLS and mutual TLS on the server's sockets, with certificates that can be renewed while it runs."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from interlingua.contract.errors import ModelError
from interlingua.server.settings import ServerSettings
from interlingua.server.watched import Watched


class Certificates(Watched):
    """What the server shows, and what it asks of clients. `context` is for the listening socket and stays the same.

    New handshakes use the files' newest state; connections that stand go on. There are no session tickets, so that
    a client whose certificate is no longer good does not come back with an old session.
    """

    @classmethod
    def of(cls, settings: ServerSettings) -> Certificates | None:
        """None = plain HTTP. Raises ModelError when a file is bad or only half of what is needed is named."""
        half = settings.tls_key or settings.tls_key_password_file or settings.tls_client_ca or settings.tls_crl
        if settings.tls_certificate is None and not half:
            return None
        if settings.tls_certificate is None or settings.tls_key is None:
            raise ModelError("TLS needs both `--tls-certificate` and `--tls-key`")
        if settings.tls_crl and not settings.tls_client_ca:
            raise ModelError("`--tls-crl` revokes certificates of clients and needs `--tls-client-ca`")
        return cls(settings.tls_certificate, settings.tls_key, settings)

    def __init__(self, certificate: str, key: str, settings: ServerSettings) -> None:
        self._certificate = certificate
        self._key = key
        self._password_file = settings.tls_key_password_file
        self._client_ca = settings.tls_client_ca
        self._crl = settings.tls_crl
        self._current: ssl.SSLContext | None = None
        files = (certificate, key, self._password_file, *self._client_ca, *self._crl)
        super().__init__(Path(path) for path in files if path is not None)
        self.context = self._build()
        # The context of a listening socket cannot be exchanged; that of a handshake can, at its first message.
        self.context.sni_callback = self._choose

    def read(self) -> None:
        self._current = self._build()

    def _choose(self, handshake: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        assert self._current is not None
        handshake.context = self._current

    def _build(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        context.num_tickets = 0
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._certificate, self._key, self._password())
        except (OSError, ssl.SSLError) as problem:
            raise ModelError(
                f"cannot use the certificate {self._certificate} with the key {self._key}: {_reason(problem)}"
            ) from None
        if self._client_ca:
            context.verify_mode = ssl.CERT_REQUIRED
        for path in (*self._client_ca, *self._crl):
            try:
                context.load_verify_locations(path)
            except (OSError, ssl.SSLError) as problem:
                raise ModelError(f"cannot use {path} to verify clients: {_reason(problem)}") from None
        if self._crl:
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
        return context

    def _password(self) -> Callable[[], str]:
        """Asked only if the key is encrypted. Without this, OpenSSL would ask at the terminal and wait."""

        def password() -> str:
            path = self._password_file
            if path is None:
                raise ModelError(f"the key {self._key} is encrypted, and no file with its password is named")
            try:
                return Path(path).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as problem:
                raise ModelError(f"cannot read the password in {path}: {_reason(problem)}") from None

        return password


def _reason(problem: OSError | UnicodeDecodeError) -> str:
    """In a few words; OpenSSL's own are like "KEY_VALUES_MISMATCH"."""
    if isinstance(problem, ssl.SSLError):
        return (problem.reason or "it is no PEM file").lower().replace("_", " ")
    return (problem.strerror if isinstance(problem, OSError) else None) or "it cannot be read"
