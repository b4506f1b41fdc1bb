"""Who may call: keys, certificates and origins, each changed while the server runs; and what must not be told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import ssl
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
import trustme
from byte_model import house, script, served
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from server_site import Start
from sockets import Answer, Connection
from test_endings import until_inside

from interlingua.contract.errors import ModelError
from interlingua.engine.echo import Script
from interlingua.server.app import build_app
from interlingua.server.keys import Keys
from interlingua.server.routes import discover
from interlingua.server.run import serve
from interlingua.server.settings import ServerSettings
from interlingua.server.tls import Certificates
from interlingua.service.service import ServedModel

BODY = orjson.dumps({"inputs": "x"})


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(3000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited for 30 seconds")


async def post(connection: Connection, *headers: str, path: str = "/generate") -> Answer:
    connection.send_head("POST", path, f"content-length: {len(BODY)}", *headers)
    connection.writer.write(BODY)
    return await connection.answer()


# --- keys ------------------------------------------------------------------------------------------------


async def test_who_asks_for_the_key_is_as_the_page_says(start: Start):
    """Each route of the API page, asked without one."""
    site = await start(script("ok"), server={"api_key": "key", "admin_key": "admin"})
    admin = {"/stopService", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"}
    asking: set[tuple[str, str]] = set()
    paths = (await site.ask("GET", "/openapi.json")).json["paths"]
    for path, methods in paths.items():
        for method in map(str.upper, methods):
            answer = await site.ask(method, re.sub(r"{\w+}", "bytes", path), *([BODY] if method == "POST" else []))
            if answer.status == 401:
                asking.add((method, path))
    posts = {("POST", path) for path, methods in paths.items() if "post" in methods}
    models = {("GET", path) for path in paths if path.startswith("/v1/models")}
    said = {(method.upper(), path) for path, own in paths.items() for method, one in own.items() if "security" in one}
    assert len(posts) > 10 and len(models) > 1 and admin < paths.keys()
    assert asking == said == posts | models | {("GET", "/stopService")}


def test_keys_of_a_file(tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("# the team's\nalpha\n\n  beta  \nключ\n", encoding="utf-8")
    keys = Keys("given", str(file))
    assert keys.asked_for
    assert all(map(keys.accepts, ("given", "alpha", "beta", "ключ")))
    assert not any(map(keys.accepts, ("", "Alpha", "alph", "alphaa", "# the team's", "given\0", "\ud800")))
    assert not Keys().asked_for


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "No such file"), (b"# none\n\n", "no key"), (b"\xff\xfe", "UTF-8")]
)
def test_a_file_without_keys_is_a_bad_start(tmp_path: Path, content: bytes | None, problem: str):
    """An empty file must not mean that everybody may call."""
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ModelError, match=problem):
        Keys(None, str(file))


async def test_each_key_opens_and_new_ones_need_no_restart(start: Start, tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("one\ntwo\n")
    site = await start(script("ok"), server={"api_key": "given", "api_key_file": str(file)})
    connection = await site.connect()

    async def status(key: str) -> int:
        return (await post(connection, f"authorization: Bearer {key}")).status

    assert [await status(key) for key in ("given", "one", "two", "three", "one two")] == [200, 200, 200, 401, 401]
    file.write_text("three\n")
    for _ in range(500):
        if await status("three") == 200:
            break
        await asyncio.sleep(0.02)
    assert [await status(key) for key in ("given", "one", "three")] == [200, 401, 200]
    file.write_text("")
    site.app.refresh()
    assert await status("three") == 200, "a broken file changes nothing"
    connection.close()


async def test_a_hangup_reads_keys_again(tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("old\n")
    state = file.stat()
    home = house(script("ok"), loaded=False)
    app = build_app(home.service, discover(), ServerSettings(port=0, api_key_file=str(file)))
    ready: asyncio.Queue[str] = asyncio.Queue()

    async def load() -> ServedModel:
        return served(home.engine)

    serving = asyncio.create_task(serve(app, load, ready.put_nowait))
    await ready.get()
    file.write_text("new\n")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))  # so that its time and size do not give it away
    signal.raise_signal(signal.SIGHUP)
    await until(lambda: app.keys.accepts("new"))
    assert not app.keys.accepts("old")
    signal.raise_signal(signal.SIGTERM)
    assert await asyncio.wait_for(serving, 20) == 0


# --- TLS -------------------------------------------------------------------------------------------------


class Papers:
    """Certificates in files, and contexts for clients that trust them."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.client_ca = trustme.CA()
        self.certificate, self.key = folder / "server.pem", folder / "server.key"
        self.client_roots, self.crl = folder / "clients.pem", folder / "revoked.pem"
        self.client_ca.cert_pem.write_to_path(self.client_roots)
        self._folder = folder
        self.renew()

    def renew(self) -> None:
        issued = self.ca.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(self.key)
        for index, pem in enumerate(issued.cert_chain_pems):
            pem.write_to_path(self.certificate, append=index > 0)

    def settings(self, **more: object) -> dict[str, object]:
        return {"tls_certificate": str(self.certificate), "tls_key": str(self.key), **more}

    def client(self, issued: trustme.LeafCert | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        if issued is not None:
            issued.configure_cert(context)
        return context

    def revoke(self, *certificates: trustme.LeafCert) -> None:
        authority = x509.load_pem_x509_certificate(self.client_ca.cert_pem.bytes())
        key = serialization.load_pem_private_key(self.client_ca.private_key_pem.bytes(), None)
        builder = x509.CertificateRevocationListBuilder().issuer_name(authority.subject)
        builder = builder.last_update(authority.not_valid_before_utc).next_update(authority.not_valid_after_utc)
        for one in certificates:
            serial = x509.load_pem_x509_certificate(one.cert_chain_pems[0].bytes()).serial_number
            row = x509.RevokedCertificateBuilder().serial_number(serial)
            builder = builder.add_revoked_certificate(row.revocation_date(authority.not_valid_before_utc).build())
        signed = builder.sign(key, hashes.SHA256())  # type: ignore[arg-type]
        self.crl.write_bytes(signed.public_bytes(serialization.Encoding.PEM))


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return Papers(tmp_path)


async def open_tls(port: int, context: ssl.SSLContext) -> Connection:
    return Connection(*await asyncio.open_connection("127.0.0.1", port, ssl=context))


async def tls_post(port: int, context: ssl.SSLContext) -> tuple[int, int]:
    """(status, serial number of the certificate shown)."""
    connection = await open_tls(port, context)
    try:
        shown = connection.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return (await post(connection)).status, x509.load_der_x509_certificate(shown).serial_number
    finally:
        connection.close()


async def test_tls_and_a_new_certificate_without_a_restart(start: Start, papers: Papers):
    site = await start(Script(ids=(97,) * 200, delay=0.01), server=papers.settings())
    stays = await open_tls(site.port, papers.client())
    stays.send("POST", "/generate_stream", {"inputs": "x", "parameters": {"max_new_tokens": 200}})
    assert (await stays.read_head())[0] == 200
    _, before = await tls_post_short(site.port, papers)
    papers.renew()
    after = before
    for _ in range(300):
        _, after = await tls_post_short(site.port, papers)
        if after != before:
            break
        await asyncio.sleep(0.02)
    assert after != before
    frames = [piece async for piece in stays.pieces({"transfer-encoding": "chunked"})]
    assert len(b"".join(frames).split(b"\n\n")) == 201, "a connection that stood goes on"
    stays.close()
    papers.key.write_bytes(b"broken")
    site.app.refresh()
    assert (await tls_post_short(site.port, papers))[1] == after, "a broken file changes nothing"
    await site.home.emptied()


async def tls_post_short(port: int, papers: Papers) -> tuple[int, int]:
    connection = await open_tls(port, papers.client())
    shown = connection.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    status = (await connection.ask("GET", "/health")).status
    connection.close()
    return status, x509.load_der_x509_certificate(shown).serial_number


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/v1/completions"])
async def test_leaving_over_tls_frees_everything(start: Start, papers: Papers, path: str, how: str):
    """As without TLS: with a farewell or none, before the first token and between tokens."""
    site = await start(Script(ids=(97,) * 8000, delay=0.005), server=papers.settings())
    body = {"prompt": "x", "max_tokens": 8000, "stream": True}
    if path != "/v1/completions":
        body = {"inputs": "x", "parameters": {"max_new_tokens": 8000}}
    for after in (0.0, 0.1):
        connection = await open_tls(site.port, papers.client())
        connection.send("POST", path, body)
        await until_inside(site, 1)
        await asyncio.sleep(after)
        getattr(connection, how)()
        await site.home.emptied(2.0)
    assert site.home.service.metrics.failures == {"dropped": 2}


async def test_a_client_that_never_reads_is_cut_off_over_tls(start: Start, papers: Papers):
    server = papers.settings(write_timeout=0.3)
    site = await start(Script(ids=(97,) * 100), server=server, max_context=2_000_000)
    connection = await open_tls(site.port, papers.client())
    connection.writer.transport.pause_reading()
    parameters = {"max_new_tokens": 1_900_000, "ignore_eos": True}
    connection.send("POST", "/generate_stream", {"inputs": "x", "parameters": parameters})
    await until_inside(site, 1)
    await site.home.emptied(30.0)
    assert site.home.service.metrics.failures == {"dropped": 1}
    connection.close()


async def test_plain_http_and_old_tls_are_not_spoken_on_a_tls_port(start: Start, papers: Papers):
    site = await start(script("ok"), server=papers.settings())
    plain = await site.connect()
    plain.send("GET", "/health")
    received = b""
    with contextlib.suppress(ConnectionError):
        received = await asyncio.wait_for(plain.reader.read(), 20)
    assert b"HTTP" not in received
    old = papers.client()
    with pytest.deprecated_call():
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await open_tls(site.port, old)
    assert (await tls_post(site.port, papers.client()))[0] == 200


async def test_a_handshake_that_does_not_come_is_cut_off(start: Start, papers: Papers):
    """In the time that a head has, and not after a minute."""
    site = await start(script("ok"), server={**papers.settings(), "header_timeout": 0.3})
    for hello in (b"", b"\x16\x03\x01\x02\x00\x01"):
        silent = await site.connect()
        silent.writer.write(hello)
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(silent.reader.read(), 20) == b""
        silent.close()
    assert (await tls_post(site.port, papers.client()))[0] == 200


async def test_mutual_tls(start: Start, papers: Papers):
    """Only clients with a certificate of the right authority, and not after it was revoked."""
    good, bad = papers.client_ca.issue_cert("good@example.org"), papers.client_ca.issue_cert("bad@example.org")
    stranger = trustme.CA().issue_cert("good@example.org")
    papers.revoke()
    server = papers.settings(tls_client_ca=(str(papers.client_roots),), tls_crl=(str(papers.crl),))
    site = await start(script("ok"), server=server)

    async def served_to(issued: trustme.LeafCert | None) -> bool:
        try:
            return (await tls_post(site.port, papers.client(issued)))[0] == 200
        except (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
            return False

    assert [await served_to(one) for one in (good, bad, stranger, None)] == [True, True, False, False]
    papers.revoke(bad)
    for _ in range(300):
        if not await served_to(bad):
            break
        await asyncio.sleep(0.02)
    assert [await served_to(one) for one in (good, bad)] == [True, False]
    await site.home.emptied()


def test_bad_tls_files_are_bad_starts(papers: Papers, tmp_path: Path):
    (tmp_path / "other").mkdir()
    other = Papers(tmp_path / "other")
    encrypted = tmp_path / "encrypted.key"
    key = serialization.load_pem_private_key(papers.key.read_bytes(), None)
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    password = tmp_path / "password"
    for more, problem in (
        ({"tls_certificate": None}, "both `--tls-certificate` and `--tls-key`"),
        ({"tls_key": None}, "both"),
        ({"tls_certificate": "/nothing"}, "No such file"),
        ({"tls_key": str(other.key)}, "mismatch"),
        ({"tls_key": str(encrypted)}, "encrypted"),
        ({"tls_key": str(encrypted), "tls_key_password_file": "/nothing"}, "No such file"),
        ({"tls_client_ca": ("/nothing",)}, "No such file"),
        ({"tls_client_ca": (str(papers.key),)}, "verify clients"),
        ({"tls_crl": (str(papers.crl),)}, "--tls-client-ca"),
    ):
        with pytest.raises(ModelError, match=problem):
            Certificates.of(ServerSettings(**papers.settings(**more)))  # type: ignore[arg-type]
    password.write_text("password\n")
    settings = papers.settings(tls_key=str(encrypted), tls_key_password_file=str(password))
    assert Certificates.of(ServerSettings(**settings)) is not None  # type: ignore[arg-type]
    assert Certificates.of(ServerSettings()) is None


# --- origins ---------------------------------------------------------------------------------------------

ORIGIN = "https://app.example.org"
PREFLIGHT = (
    f"origin: {ORIGIN}",
    "access-control-request-method: POST",
    "access-control-request-headers: authorization",
)


async def preflight(connection: Connection) -> Answer:
    connection.send_head("OPTIONS", "/generate", *PREFLIGHT)
    return await connection.answer()


async def test_without_being_asked_no_page_of_another_origin_may_read(start: Start):
    site = await start(script("ok"))
    connection = await site.connect()
    answers = [await preflight(connection), await post(connection, f"origin: {ORIGIN}")]
    assert [answer.status for answer in answers] == [405, 200]
    assert not any(name.startswith("access-control") for answer in answers for name in answer.headers)
    connection.close()


@pytest.mark.parametrize(("allowed", "good"), [(ORIGIN, True), ("*", True), ("https://other.example.org", False)])
async def test_pages_of_named_origins_may_call(start: Start, allowed: str, good: bool):
    """Without credentials, and with the key in a header, which a browser asks for first."""
    site = await start(script("ok"), server={"cors_allow_origin": (allowed,), "api_key": "key"})
    connection = await site.connect()
    first = await preflight(connection)
    assert (first.status == 200) is good
    for path in ("/generate", "/generate_stream"):
        answer = await post(connection, f"origin: {ORIGIN}", "authorization: Bearer key", path=path)
        assert answer.status == 200
        assert (answer.headers.get("access-control-allow-origin") in (ORIGIN, "*")) is good
        assert "access-control-allow-credentials" not in answer.headers
    connection.close()
    await site.home.emptied()


# --- what is not told ------------------------------------------------------------------------------------


async def test_prompts_and_answers_are_in_no_log(start: Start, caplog: pytest.LogCaptureFixture):
    """Whatever happens to a request, at the most talkative level."""
    caplog.set_level(logging.DEBUG)
    secret = "zebra-crossing"
    fates = iter((script(secret), Script(ids=(97,) * 9, fail_at=2), Script(ids=(97,), fail_at=0), Script(die_at=1)))
    site = await start(lambda request: next(fates), server={"api_key": "quagga"})
    connection = await site.connect()
    for body in (
        {"inputs": secret},
        {"inputs": secret, "nonsense": secret},
        {"inputs": secret},
        {"text_input": secret},
    ):
        data = orjson.dumps({**body, "parameters": {"details": True}})
        connection.send_head("POST", "/generate", f"content-length: {len(data)}", "authorization: Bearer quagga")
        connection.writer.write(data)
        await connection.answer()
    data = orjson.dumps({"inputs": secret, "parameters": {"stop": secret, "max_new_tokens": secret}})
    connection.send_head("POST", "/generate", f"content-length: {len(data)}", "authorization: Bearer quagga")
    connection.writer.write(data)
    assert (await connection.answer()).status == 422
    connection.close()
    assert secret not in caplog.text and "quagga" not in caplog.text
