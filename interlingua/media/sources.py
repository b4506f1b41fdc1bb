"""Where media may come from: which hosts a URL may name, and which files a path.

A URL is read as RFC 3986 writes it, in the one form that no two parsers take differently; all else (an IPv4 address in
decimal, octal or hex, a user before the host, a host that is not ASCII) is refused instead of guessed at.

No name is resolved and nothing is opened. That is no protection by itself: a name may lead to any address. Whoever
fetches must ask `is_public` again about the address that it is connected to, follow no redirect, and open files without
following links, since a file may have changed since it was looked at.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import PurePosixPath

from interlingua.contract.errors import ValidationError
from interlingua.contract.request import MediaPart

HOST_RULE = "a host name of ASCII letters, digits and hyphens, or an address in its usual notation"
_SHOWN = 200  # characters of a source in a message

# scheme://HOST[:PORT], then what is not the host's any more. No user, no backslash, no escape.
_URL = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?(?=[/?#])", re.IGNORECASE | re.ASCII)
_NAME = re.compile(r"(?:(?!-)[a-z0-9_-]{1,63}(?<!-)\.)*(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # as the last label: the WHATWG's parsers read an IPv4 address

_LOOPBACK = ("localhost",)  # RFC 6761: a resolver is not even asked
# Names that lead inside (RFC 6762, 8375, ICANN's "internal"), and those that lead to whatever address they spell.
_INSIDE = ("local", "internal", "lan", "home.arpa", "metadata.goog", "nip.io", "sslip.io")

_NOT_PUBLIC_4 = (
    IPv4Network("168.63.129.16/32"),  # Azure's host, from inside of its machines alone
    IPv4Network("192.0.0.0/24"),  # protocol assignments; Oracle's metadata are at .192
    IPv4Network("192.88.99.0/24"),  # relays of 6to4, given up by RFC 7526
)
_UNICAST_6 = IPv6Network("2000::/3")  # what is assigned at all; without it all mapped, translated and local addresses
_NOT_PUBLIC_6 = (
    IPv6Network("2001::/23"),  # protocol assignments, with Teredo, which holds an IPv4 address
    IPv6Network("2001:db8::/32"),
    IPv6Network("2002::/16"),  # 6to4, which holds an IPv4 address
    IPv6Network("3fff::/20"),  # documentation, RFC 9637
)


def canonical_host(text: str) -> str:
    """The host in the one form in which hosts are compared. An IPv6 address may stand in brackets.

    Raises:
        ValueError: it is no host, or written in a form that not all parsers take for the same one.
    """
    if not text.isascii():
        raise ValueError(f"must be {HOST_RULE} (write other alphabets as xn--…)")
    host = text.lower()
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if ":" not in host:
            raise ValueError(f"must be {HOST_RULE}")
    try:
        if ":" in host and "%" not in host:
            return str(IPv6Address(host))
        if _NUMBER.fullmatch(host.rpartition(".")[2]):
            return str(IPv4Address(host))
    except ValueError:
        raise ValueError(f"must be {HOST_RULE}") from None
    if len(host) > 253 or not _NAME.fullmatch(host):
        raise ValueError(f"must be {HOST_RULE}")
    return host


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Does the address lead to the internet: not private, loopback, link-local, multicast, reserved, metadata?

    IPv6 addresses that hold an IPv4 address (mapped, NAT64, 6to4, Teredo) are not public, whatever they hold.
    """
    if isinstance(address, IPv4Address):
        inside = any(address in network for network in _NOT_PUBLIC_4)
    else:
        inside = address not in _UNICAST_6 or any(address in network for network in _NOT_PUBLIC_6)
    return address.is_global and not address.is_multicast and not inside


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSources:
    """What an operator allows. The default allows files of the folder and nothing remote.

    Attributes:
        hosts: in canonical form; compared exactly, without the port.
        public: any host on the internet too.
        folder: files below it may be named.
    """

    hosts: frozenset[str] = frozenset()
    public: bool = False
    folder: str = "/data/multimodal_inputs"

    def check(self, parts: Iterable[MediaPart]) -> None:
        """Looks at the disk where parts name files, so not for the event loop.

        Raises:
            ValidationError: the first part that is not allowed: its field, the rule and the given source.
        """
        for part in parts:
            try:
                if part.form == "url":
                    self._check_url(part.source)
                elif part.form == "file":
                    self._check_file(part)
            except ValueError as problem:
                given = json.dumps(part.source[:_SHOWN], ensure_ascii=False)
                more = "…" if len(part.source) > _SHOWN else ""
                raise ValidationError(part.field, f"{problem}, got {given}{more}") from None

    def _check_url(self, url: str) -> None:
        match = _URL.match(url)
        if match is None or not 0 < int(match[2] or 80) < 65536:
            raise ValueError(f"must be a URL of the form http(s)://HOST[:PORT]/PATH with {HOST_RULE}")
        host = canonical_host(match[1])
        if not self.hosts and not self.public:
            raise ValueError("must be no URL: no host of media is allowed here")
        if _is_name(host):
            if _below(host, _LOOPBACK):
                raise ValueError("must name no loopback host")
            if host in self.hosts:
                return  # its address is for the one who connects to judge
            if self.public and ("." not in host or _below(host, _INSIDE)):
                raise ValueError("must name no internal host, nor one that stands for any address")
        elif host in self.hosts:
            return
        elif not is_public(ip_address(host)):
            raise ValueError("must name no private, loopback, link-local, reserved or metadata address")
        if not self.public:
            raise ValueError("must name a host that is allowed here")

    def _check_file(self, part: MediaPart) -> None:
        path = part.source.removeprefix("file://")
        folder = PurePosixPath(os.path.abspath(self.folder))
        steps = path.split("/")[1:]
        if not path.startswith("/") or not {"", ".", ".."}.isdisjoint(steps):
            raise ValueError(f"must be an absolute path below {folder} without empty steps, `.` and `..`")
        if folder not in PurePosixPath(path).parents:
            raise ValueError(f"must be a path below {folder}")
        where = str(folder)  # links up to here are the operator's own
        for step in PurePosixPath(path).relative_to(folder).parts:
            where = os.path.join(where, step)
            try:
                found = os.lstat(where)
            except (OSError, ValueError):  # ValueError: a name that the disk's encoding does not have
                raise ValueError("must name a file that exists and can be read") from None
            if stat.S_ISLNK(found.st_mode):
                raise ValueError("must lead through no symbolic link")
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("must name a regular file")
        if found.st_size > part.max_bytes:
            raise ValueError(f"must name a file of at most {part.max_bytes} bytes and not of {found.st_size}")


def _is_name(host: str) -> bool:
    return ":" not in host and not _NUMBER.fullmatch(host.rpartition(".")[2])


def _below(host: str, suffixes: Iterable[str]) -> bool:
    return any(host == suffix or host.endswith("." + suffix) for suffix in suffixes)
