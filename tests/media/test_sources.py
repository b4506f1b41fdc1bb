"""Hosts and files that a part may name, by tables of hostile ones. Nothing here touches a network."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

import pytest

from interlingua.contract.errors import NotSupportedError, ValidationError
from interlingua.contract.request import MediaPart
from interlingua.media.sources import MediaSources, canonical_host, is_public

PUBLIC = MediaSources(public=True)
NOTHING = MediaSources()
FIELD = "inputs[1].image_url"


def part(source: str, form: Literal["url", "file", "data"] = "url", max_bytes: int = 100) -> MediaPart:
    return MediaPart("image", form, source, FIELD, max_bytes)


def refusal(sources: MediaSources, *parts: MediaPart) -> str:
    with pytest.raises(ValidationError) as caught:
        sources.check(parts)
    assert caught.value.field == FIELD and not isinstance(caught.value, NotSupportedError)
    assert caught.value.problem.startswith("must ")
    return caught.value.problem


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object, **__: object) -> None:
        raise AssertionError("a name was resolved or a socket opened")

    for name in ("socket", "getaddrinfo", "gethostbyname", "create_connection"):
        monkeypatch.setattr(socket, name, asked)


# --- URLs: forms that parsers take differently -----------------------------------------------------------------

MALFORMED = [
    # one address, written as no person writes it
    "2130706433", "0x7f000001", "0X7F.1", "017700000001", "0177.0.0.1", "127.1", "127.0.1", "0", "0x", "1.2.3.4.5",
    "127.0.0.01", "127.0.0.1.", "2130706433.", "256.0.0.1", "127.0.0.0x1", "h.example.0x7f", "h.example.1", "1.2.3.",
    # a host that is another one after decoding, mapping or cutting
    "%31%32%37.0.0.1", "h.example%00.evil.example", "h.example%2f@evil.example", "127。0。0。1", "１２７.0.0.1",
    "①②⑦.0.0.1", "loc\u00adalhost.example", "ｈ.example", "bücher.example", "\u212aelvin.example", "h\u2024example",
    # users
    "user@h.example", "user:secret@h.example", "h.example@127.0.0.1", "h.example:80@127.0.0.1", "@h.example",
    "h.example%40evil.example@127.0.0.1", "127.0.0.1@h.example",
    # brackets
    "[::1", "::1", "[127.0.0.1]", "[h.example]", "[::1]h.example", "[::1].h.example", "[fe80::1%25eth0]",
    "[fe80::1%eth0]", "[v1.fe80::a]", "[::ffff:127.0.0.1]h.example", "[]", "[:::1]", "[1:2:3:4:5:6:7:8:9]",
    # ports
    "h.example:", "h.example:0", "h.example:65536", "h.example:99999999", "h.example:-80", "h.example:+80",
    "h.example:8 0", "h.example:８０", "h.example:80:80", "h.example:0x50",
    # names that are none
    "h.example.", "h..example", ".h.example", "..", "-h.example", "h-.example", "*.example", "*", "h,example",
    "h example", "a" * 64 + ".example", ".".join(["a" * 60] * 5), "h.example\\", "h.example\t", "\nh.example",
    "h.example;evil.example", "h.example&x", "h.example$", "(h.example)", "'h.example'", '"',
]  # fmt: skip


@pytest.mark.parametrize("authority", MALFORMED)
def test_forms_that_parsers_take_differently(authority: str) -> None:
    url = f"http://{authority}/a.png"
    everything = MediaSources(public=True, hosts=frozenset({"h.example", "127.0.0.1", "::1", authority}))
    assert "notation" in refusal(everything, part(url))


@pytest.mark.parametrize(
    "url",
    ["http:///a.png", "http:/h.example/a.png", "http:h.example/a.png", "http://h.example", "//h.example/a.png",
     "ftp://h.example/a.png", "http\u017f://h.example/a.png", "http://?h.example/a.png", "http://#@h.example/a.png",
     " http://h.example/a.png", "ht\ttp://h.example/a.png", "", "https://"],
)  # fmt: skip
def test_urls_that_are_none(url: str) -> None:
    assert "must be a URL" in refusal(PUBLIC, part(url))


# --- URLs: addresses that are not on the internet ----------------------------------------------------------------

INSIDE = {
    "this host": "0.0.0.0", "this network": "0.1.2.3", "private": "10.0.0.1", "private too": "172.16.0.1",
    "the last private": "172.31.255.255", "private at home": "192.168.1.1", "carriers": "100.64.0.1",
    "Alibaba's metadata": "100.100.100.200", "loopback": "127.0.0.1", "loopback too": "127.255.255.254",
    "link-local": "169.254.1.1", "metadata": "169.254.169.254", "ECS metadata": "169.254.170.2",
    "Oracle's metadata": "192.0.0.192", "Azure's host": "168.63.129.16", "protocols": "192.0.0.8",
    "documentation": "192.0.2.1", "relays": "192.88.99.1", "benchmarks": "198.18.0.1", "docs": "203.0.113.9",
    "multicast": "224.0.0.1", "multicast wide": "239.255.255.255", "reserved": "240.0.0.1", "all": "255.255.255.255",
    "v6 unspecified": "[::]", "v6 loopback": "[::1]", "v6 loopback at length": "[0:0:0:0:0:0:0:1]",
    "mapped loopback": "[::ffff:127.0.0.1]", "mapped in hex": "[::ffff:7f00:1]", "mapped public": "[::ffff:8.8.8.8]",
    "mapped metadata": "[::FFFF:169.254.169.254]", "compatible": "[::127.0.0.1]", "compatible hex": "[::7f00:1]",
    "translated": "[64:ff9b::127.0.0.1]", "translated here": "[64:ff9b:1::10.0.0.1]", "IPv4-translated":
    "[::ffff:0:127.0.0.1]", "6to4 loopback": "[2002:7f00:1::]", "6to4 public": "[2002:808:808::1]",
    "Teredo": "[2001:0:53aa:64c:0:0:80ff:fffe]", "unique local": "[fd00::1]", "AWS metadata": "[fd00:ec2::254]",
    "Google's metadata": "[fd20:ce::254]", "link-local v6": "[fe80::1]", "site-local": "[fec0::1]",
    "multicast v6": "[ff02::1]", "documentation v6": "[2001:db8::1]", "docs v6": "[3fff::1]", "discard": "[100::1]",
    "orchid": "[2001:20::1]", "segment routing": "[5f00::1]",
}  # fmt: skip


@pytest.mark.parametrize("host", INSIDE.values(), ids=INSIDE.keys())
@pytest.mark.parametrize("port", ["", ":8080"])
def test_addresses_inside_need_to_be_listed_as_such(host: str, port: str) -> None:
    url = f"http://{host}{port}/latest/a.png"
    assert "private, loopback, link-local, reserved or metadata address" in refusal(PUBLIC, part(url))
    listed = MediaSources(hosts=frozenset({"h.example", "8.8.8.8"}))
    assert "private, loopback" in refusal(listed, part(url))
    MediaSources(hosts=frozenset({canonical_host(host)})).check([part(url)])


@pytest.mark.parametrize("address", ["8.8.8.8", "172.32.0.1", "11.0.0.1", "2606:4700::1111", "2a00:1450::1"])
def test_public_addresses(address: str) -> None:
    assert is_public(ip_address(address))
    host = f"[{address}]" if ":" in address else address
    PUBLIC.check([part(f"https://{host}/a.png")])
    assert "must name a host that is allowed here" in refusal(
        MediaSources(hosts=frozenset({"h.example"})), part(f"http://{host}/a.png")
    )


# --- URLs: names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["metadata", "instance-data", "intranet", "printer.local", "metadata.google.internal", "a.internal", "x.lan",
     "router.home.arpa", "metadata.goog", "10.0.0.1.nip.io", "nip.io", "7f000001.sslip.io", "A.NIP.IO"],
)  # fmt: skip
def test_names_of_the_inside_are_not_public(host: str) -> None:
    assert "internal host" in refusal(PUBLIC, part(f"http://{host}/a.png"))
    # An operator may name one: what it leads to is judged when it is connected to.
    MediaSources(hosts=frozenset({canonical_host(host)})).check([part(f"http://{host}/a.png")])


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "a.localhost", "localhost:8080"])
@pytest.mark.parametrize("public", [False, True])
def test_loopback_by_name_is_never_taken(host: str, public: bool) -> None:
    sources = MediaSources(public=public, hosts=frozenset({"localhost", "a.localhost", "127.0.0.1"}))
    assert "loopback" in refusal(sources, part(f"http://{host}/a.png"))


@pytest.mark.parametrize(
    "host", ["sub.h.example", "h.example.evil.example", "evilh.example", "h.example2", "h-example", "example", "x.com"]
)
def test_listed_hosts_are_compared_exactly(host: str) -> None:
    listed = MediaSources(hosts=frozenset({"h.example"}))
    assert f'got "https://{host}/a.png"' in refusal(listed, part(f"https://{host}/a.png"))
    for same in ("h.example", "H.EXAMPLE", "h.example:8443"):
        listed.check([part(f"https://{same}/a.png?size=1#x"), part(f"HTTP://{same}/a.png")])


@pytest.mark.parametrize(
    "host", ["\u212aelvin.example", "bücher.example", "fe80::1%eth0", "[fe80::1%1]", "127.1", "h.example.", "*.h", ""]
)
def test_hosts_without_one_form_cannot_be_listed(host: str) -> None:
    with pytest.raises(ValueError, match="must be a host name"):
        canonical_host(host)


def test_hosts_are_compared_in_one_form() -> None:
    listed = MediaSources(hosts=frozenset({canonical_host("[2001:DB8:0::1]"), canonical_host("xn--BCHER-KVA.example")}))
    listed.check([part("http://[2001:db8::1]/a.png"), part("http://[2001:0db8:0000::0001]:80/a.png")])
    listed.check([part("http://xn--bcher-kva.example/a.png")])


def test_without_a_list_nothing_remote_is_taken() -> None:
    for host in ("h.example", "8.8.8.8", "127.0.0.1"):
        assert "no URL" in refusal(NOTHING, part(f"http://{host}/a.png"))
    NOTHING.check([part("data:image/png;base64,AAAA", "data"), part("AAAA", "data")])


def test_a_public_host_that_is_listed_too() -> None:
    both = MediaSources(public=True, hosts=frozenset({"10.0.0.1"}))
    both.check([part("http://h.example/a.png"), part("http://10.0.0.1/a.png")])
    refusal(both, part("http://10.0.0.2/a.png"))


def test_the_first_wrong_part_is_named_and_a_long_source_is_cut() -> None:
    parts = [part("http://h.example/a.png"), part("http://10.0.0.1/" + "a" * 4000)]
    assert len(refusal(PUBLIC, *parts)) < 400


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder with links inside, and something outside that nobody may reach."""
    inside = tmp_path / "inputs"
    (inside / "deep").mkdir(parents=True)
    for file in (inside / "a.png", inside / "deep" / "é_1.JPG", tmp_path / "secret.png", inside / "deep" / "...png"):
        file.write_bytes(b"x" * 100)
    (inside / "big.png").write_bytes(b"x" * 101)
    (inside / "folder.png").mkdir()
    (inside / "link.png").symlink_to(inside / "a.png")
    (inside / "out.png").symlink_to(tmp_path / "secret.png")
    (inside / "up").symlink_to(tmp_path)
    (inside / "same").symlink_to(inside / "deep")
    (inside / "gone.png").symlink_to(tmp_path / "nothing")
    (inside / "loop.png").symlink_to(inside / "loop.png")
    os.mkfifo(inside / "pipe.png")
    (tmp_path / "inputs2").mkdir()
    (tmp_path / "inputs2" / "a.png").write_bytes(b"x")
    return inside


def test_good_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = MediaSources(folder=str(folder))
    names = ("a.png", "deep/é_1.JPG", "deep/...png")
    sources.check([part(f"{scheme}{folder}/{name}", "file") for name in names for scheme in ("", "file://")])
    # The operator's own folder may be a link, and end with a slash.
    link = folder.parent / "by-link"
    link.symlink_to(folder)
    MediaSources(folder=f"{link}/").check([part(f"{link}/a.png", "file")])
    monkeypatch.chdir(folder.parent)
    MediaSources(folder="inputs").check([part(f"{folder}/a.png", "file")])


OUTSIDE = {
    "up": ("{}/../secret.png", "`..`"),
    "up and down": ("{}/../inputs/a.png", "`..`"),
    "here": ("{}/./a.png", "`..`"),
    "up at the end": ("{}/deep/..", "`..`"),
    "twice": ("{}//a.png", "`..`"),
    "double root": ("/{}/a.png", "`..`"),
    "relative": ("a.png", "absolute"),
    "relative up": ("../secret.png", "absolute"),
    "elsewhere": ("/etc/x.png", "below"),
    "the documents' sample": ("/xxxx/test.png", "below"),
    "a neighbour": ("{}2/a.png", "below"),
    "root": ("/a.png", "below"),
    "the folder itself": ("{}", "below"),
    "a host": ("file://localhost{}/a.png", "absolute"),
    "proc": ("/proc/1/a.png", "below"),
    "no host, no root": ("file://a.png", "absolute"),
    "four slashes": ("file:///{}/a.png", "`..`"),
    "empty": ("", "absolute"),
    "scheme twice": ("file://file://{}/a.png", "absolute"),
    "windows": ("C:\\a.png", "absolute"),
    "a link": ("{}/link.png", "symbolic link"),
    "a link out": ("{}/out.png", "symbolic link"),
    "a folder that is a link out": ("{}/up/secret.png", "symbolic link"),
    "a loop": ("{}/loop.png", "symbolic link"),
    "a folder that is a link inside": ("{}/same/é_1.JPG", "symbolic link"),
    "a link to nothing": ("{}/gone.png", "link"),
    "through /up/ back": ("{}/up/inputs/a.png", "symbolic link"),
    "nothing": ("{}/none.png", "exists"),
    "below a file": ("{}/a.png/b.png", "exists"),
    "a folder": ("{}/folder.png", "regular file"),
    "a pipe": ("{}/pipe.png", "regular file"),
    "too big": ("{}/big.png", "at most 100 bytes and not of 101"),
    "a long name": ("{}/" + "a" * 300 + ".png", "exists"),
    "NUL": ("{}/a\0.png", "exists"),
    "no such letters": ("{}/\ud800.png", "exists"),
}


@pytest.mark.parametrize(("path", "rule"), OUTSIDE.values(), ids=OUTSIDE.keys())
def test_files_that_may_not_be_named(folder: Path, path: str, rule: str) -> None:
    assert rule in refusal(MediaSources(folder=str(folder)), part(path.format(folder), "file"))


def test_nothing_of_a_file_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: object) -> Iterable[object]:
        raise AssertionError("a file was opened")

    monkeypatch.setattr("builtins.open", opened)
    monkeypatch.setattr(os, "open", opened)
    MediaSources(folder=str(folder)).check([part(f"{folder}/a.png", "file")])


def test_a_folder_that_is_not_there_has_no_files() -> None:
    assert "exists" in refusal(MediaSources(folder="/nowhere/at/all"), part("/nowhere/at/all/a.png", "file"))
