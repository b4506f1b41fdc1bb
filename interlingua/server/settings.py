"""What an operator can set about the server room."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from interlingua.server.routes import Plane


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Addresses and limits of the socket. Times are in seconds, sizes in bytes."""

    host: str = "127.0.0.1"
    port: int = 8080  # 0 = any free one
    management_host: str = "127.0.0.1"
    management_port: int | None = None  # of the routes that run the server; None = they share the address above
    metrics_port: int | None = None  # of /metrics, at the management host; None = it stands with those
    grpc_port: int | None = None  # of gRPC, at the data host; None = no gRPC
    admin_key: str | None = None  # asked of routes that change the server's state
    admin_key_file: str | None = None
    api_key: str | None = None  # asked of every POST as `Authorization: Bearer KEY`
    api_key_file: str | None = None  # more keys, one on each line; read again when it changes
    tls_certificate: str | None = None  # PEM file: the server's, with those between it and the root; None = plain HTTP
    tls_key: str | None = None
    tls_key_password_file: str | None = None
    tls_client_ca: tuple[str, ...] = ()  # every client must show a certificate that one of these has signed
    tls_crl: tuple[str, ...] = ()  # revoked certificates of clients
    cors_allow_origin: tuple[str, ...] = ()  # origins whose pages may call; "*" = all; none = no CORS headers
    payload_limit: int = 40 * 1024 * 1024  # a request's body
    max_header_bytes: int = 64 * 1024  # request line and headers together
    max_headers: int = 100
    header_timeout: float = 10.0  # from a request's first byte, or from connecting, to the end of its headers
    body_timeout: float = 30.0  # without a byte of the body arriving
    write_timeout: float = 30.0  # without the client taking a byte of the answer
    keep_alive_timeout: float = 75.0  # of a connection between two requests
    stop_grace: float = 90.0  # for running requests after SIGTERM; TGI's own default

    @property
    def open_to_all(self) -> bool:
        """Can other machines use the model, in plain text and with no key?"""
        try:
            local = self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            local = False  # a name
        return not (local or self.api_key or self.api_key_file or self.tls_certificate)

    @property
    def own_addresses(self) -> Mapping[Plane, tuple[str, int]]:
        """Planes that have an address of their own. One that is named twice is shared."""
        found: dict[Plane, tuple[str, int]] = {}
        taken = [(self.host, self.port)]
        for plane, port in ((Plane.MANAGEMENT, self.management_port), (Plane.METRICS, self.metrics_port)):
            if port is not None and (port == 0 or (self.management_host, port) not in taken):
                found[plane] = (self.management_host, port)
                taken.append(found[plane])
        return found
