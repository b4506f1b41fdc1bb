"""The pages for people: `/` in a browser, and the API page; each describes the address that it stands at."""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from byte_model import NAME, script
from server_site import Start
from sockets import Answer, Connection, ask

import interlingua
from interlingua.server import pages
from interlingua.server.routes import discover

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or ""
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
in_a_browser = pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed")


async def accepting(port: int, accept: str | None, method: str = "GET", path: str = "/") -> Answer:
    connection = await Connection.open(port)
    try:
        connection.send_head(method, path, *([f"accept: {accept}"] if accept is not None else []))
        if method == "HEAD":
            return Answer(*await connection.read_head(), b"")
        return await connection.answer()
    finally:
        connection.close()


async def drawn(url: str) -> str:
    """What a real browser makes of a page. It can reach nothing but the server."""
    browser = await asyncio.create_subprocess_exec(
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--dump-dom"),
        *("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    dom, _ = await asyncio.wait_for(browser.communicate(), 60)
    return dom.decode()


def of(site: Any, name: str) -> int:
    return int(site.app.addresses[name].rsplit(":", 1)[1])


def whole_in_itself(page: Answer) -> bool:
    """Nothing comes from elsewhere, and the policy sees to it."""
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    found = re.sub(rb'<link rel="icon" href="data:image/png;base64,[^"]+">', b"", page.body)
    assert found != page.body and "img-src data:" in page.headers["content-security-policy"], "asks for no favicon"
    return not re.search(rb"https?://|//[a-z]|<link|src=|@import|innerHTML", found)


# --- the root -----------------------------------------------------------------------------------------------


async def test_a_browser_finds_a_page_at_the_root(start: Start):
    site = await start()
    page = await accepting(site.port, BROWSER)
    text = page.body.decode()
    assert page.status == 200 and whole_in_itself(page)
    assert page.headers["vary"] == "accept" and page.headers["cache-control"] == "no-store"
    assert f"<strong>{NAME}</strong>" in text and interlingua.__version__ in text
    links = re.findall(r'href="(\w[^":]+)"', text)
    assert links == ["docs", "openapi.json", "info", "metrics", "v1/status"]
    for link in links:
        assert (await site.ask("GET", f"/{link}")).status == 200, link
    head = await accepting(site.port, BROWSER, "HEAD")
    assert (head.status, head.headers["content-length"]) == (200, str(len(page.body)))


@pytest.mark.parametrize("accept", [None, "", "*/*", "application/json", "text/*", "text/htmlx, */*"])
async def test_programs_find_health_at_the_root(start: Start, accept: str | None):
    site = await start()
    answer = await accepting(site.port, accept)
    assert (answer.status, answer.body) == (200, b"")
    site.home.engine.kill(RuntimeError("gone"))
    answer = await accepting(site.port, accept)
    assert (answer.status, answer.json["error_type"]) == (503, "healthcheck")


async def test_the_page_at_the_root_says_why_nothing_is_served(start: Start):
    site = await start(loaded=False)
    page = await accepting(site.port, "Text/HTML;q=1")
    assert page.status == 503 and b"No requests can be served now: the server is loading." in page.body


async def test_names_are_no_markup(start: Start):
    site = await start()
    object.__setattr__(site.home.service.model, "name", "<script>alert(1)</script>$x&")
    page = await accepting(site.port, BROWSER)
    assert b"<strong>&lt;script&gt;alert(1)&lt;/script&gt;$x&amp;</strong>" in page.body and whole_in_itself(page)


# --- the API page -------------------------------------------------------------------------------------------


async def test_the_api_page(start: Start):
    site = await start()
    described = (await site.ask("GET", "/openapi.json")).json
    assert described["openapi"].startswith("3.") and described["info"]["version"] == interlingua.__version__
    for dialect in discover():
        for route in dialect.routes:
            assert route.method.lower() in described["paths"][route.path]
    for path in ("/health", "/info", "/metrics", "/tokenize"):
        assert path in described["paths"]
    assert "components" not in described
    page = await site.ask("GET", "/docs")
    assert whole_in_itself(page) and b'fetch("openapi.json")' in page.body


async def test_sections_stand_as_people_look_for_them(start: Start):
    site = await start()
    tags = (await site.ask("GET", "/openapi.json")).json["tags"]
    assert [tag["name"] for tag in tags] == ["openai", "tgi", "vllm", "kserve", "triton", "native", "system"]
    assert {tag["name"]: tag["x-displayName"].split()[0].strip(",") for tag in tags} == {
        "openai": "OpenAI",
        "tgi": "TGI",
        "vllm": "vLLM",
        "kserve": "KServe",
        "triton": "Triton",
        "native": "Native",
        "system": "Operation",
    }


async def test_each_address_describes_its_own_routes(start: Start):
    site = await start(script("ok"), server={"management_port": 0, "metrics_port": 0})
    management = of(site, "management")
    own = {"/stopService", "/v1/status", "/v1/config", "/metrics-json", "/v1/load_lora_adapter", "/health/{probe}"}
    data = (await site.ask("GET", "/openapi.json")).json
    run = (await ask(management, "GET", "/openapi.json")).json
    assert not own & data["paths"].keys() and "/generate" in data["paths"]
    assert own <= run["paths"].keys() and "/generate" not in run["paths"]
    assert "/metrics" not in {**data["paths"], **run["paths"]}
    assert [tag["name"] for tag in run["tags"]] == ["system"]
    assert list(run["paths"]["/"]) == ["get"] and set(data["paths"]["/"]) == {"get", "post"}
    for port, described in ((site.port, data), (management, run)):
        for path, methods in described["paths"].items():
            if "get" in methods and "{" not in path and path != "/stopService":
                assert (await ask(port, "GET", path)).status == 200, path
        assert whole_in_itself(await ask(port, "GET", "/docs"))
    page = (await accepting(management, BROWSER)).body.decode()
    assert 'href="v1/status"' in page and 'href="metrics"' not in page and "for those who run the server" in page
    assert 'href="v1/status"' not in (await accepting(site.port, BROWSER)).body.decode()
    assert (await ask(of(site, "metrics"), "GET", "/docs")).status == 404


@pytest.mark.parametrize("separate", [False, True])
async def test_the_page_says_what_asks_for_which_key(start: Start, separate: bool):
    async def asking(**keys: str) -> set[str]:
        site = await start(server={**keys, **({"management_port": 0} if separate else {})})
        described = (await ask(of(site, "management") if separate else site.port, "GET", "/openapi.json")).json
        paths = {
            path
            for path, methods in described["paths"].items()
            if any("security" in operation for operation in methods.values())
        }
        assert bool(paths) == ("components" in described)
        return paths

    changing = {"/stopService", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"}
    assert await asking() == set()
    assert await asking(admin_key="mine") == changing
    clients = await asking(api_key="theirs")
    assert not changing & clients and ("/generate" in clients) == (not separate)


@in_a_browser
async def test_the_api_page_in_a_browser(start: Start):
    """Every operation has its place."""
    site = await start(server={"api_key": "mine"})
    dom = await drawn(f"http://127.0.0.1:{site.port}/docs")
    described = (await site.ask("GET", "/openapi.json")).json
    operations = {f"{method} {path}" for path, methods in described["paths"].items() for method in methods}
    assert set(re.findall(r'<details id="([^"]+)"', dom)) == operations
    assert "<code>parameters.max_new_tokens</code>" in dom, "fields of inner objects too"
    assert "<code>/vllm/generate</code>" in dom and "`" not in dom.partition("<script>")[0]
    assert " or </td>" not in dom and "−2^63" in dom
    assert re.search(r'<label id="key">', dom), "it asks for the key"
    assert re.findall(r"<h2>(\w+)", dom) == ["OpenAI", "TGI", "vLLM", "KServe", "Triton", "Native", "Operation"]
    chat = dom.partition('<details id="post /v1/chat/completions"')[2].partition("</details>")[0]
    assert re.search(r"<code>seed</code></td><td>integer \(≥ −2\^63, ≤ 2\^63 − 1\)", chat)
    assert re.search(r"<code>parameters.seed</code></td><td>integer \(≥ 1, ≤ 2\^64 − 1\)", dom)


@in_a_browser
async def test_nothing_is_sent_without_the_parts_of_its_path(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The page with a hand of its own: it fills in some fields and presses the buttons."""
    site = await start()
    steps = """<script>(async () => {
        const wait = what => new Promise(done => {
            const look = () => { const found = what(); found ? done(found) : setTimeout(look, 20); };
            look();
        });
        for (const [id, value] of [
            ["get /health/{probe}", ""], ["get /health/{probe}", "timely"], ["get /health/{probe}", "timed-9"],
            ["get /v1/models/{owner}/{model}", ""], ["get /stopService", ""],
        ]) {
            const place = await wait(() => document.getElementById(id));
            place.querySelector("input").value = value;
            const output = place.querySelector("pre");
            place.querySelector("button").click();
            if (id !== "get /stopService") await wait(() => /^Not sent|s\\)$/.test(output.textContent));
            document.body.append(`[${id} ${value}: ${output.textContent.split("\\n")[0]}]`);
        }
    })();</script>"""
    (tmp_path / "page.html").write_text(pages.API_PAGE.read_text().replace("</html>", steps + "</html>"))
    monkeypatch.setattr(pages, "API_PAGE", tmp_path / "page.html")
    dom = (await drawn(f"http://127.0.0.1:{site.port}/docs")).rpartition("</script>")[2]
    assert re.findall(r"\[get (.+?)\]", dom) == [
        "/health/{probe} : Not sent: probe is missing.",
        "/health/{probe} timely: Not sent: probe is no such value.",
        "/health/{probe} timed-9: 200 OK",
        "/v1/models/{owner}/{model} : Not sent: owner is missing.",
        "/stopService : …",
    ], "what is in the query may stay away"


@in_a_browser
async def test_the_api_page_on_a_telephone(start: Start, tmp_path: Path):
    """Nothing is wider than the screen, with every operation unfolded."""
    site = await start()
    browser = await asyncio.create_subprocess_exec(
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"),
        *(f"--user-data-dir={tmp_path}", "about:blank"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert browser.stderr is not None
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession() as session:
            while (found := re.search(rb"DevTools listening on ws://([^/]+)", await browser.stderr.readline())) is None:
                pass
            async with session.get(f"http://{found[1].decode()}/json/list") as pages:
                (address,) = (page["webSocketDebuggerUrl"] for page in await pages.json() if page["type"] == "page")
            async with session.ws_connect(address, max_msg_size=0) as tools:
                numbers = itertools.count(1)

                async def call(method: str, **parameters: object) -> dict[str, Any]:
                    number = next(numbers)
                    await tools.send_json({"id": number, "method": method, "params": parameters})
                    while (message := await tools.receive_json()).get("id") != number:
                        pass
                    result: dict[str, Any] = message["result"]
                    return result

                async def value(expression: str) -> int:
                    result = await call("Runtime.evaluate", expression=expression, returnByValue=True)
                    return int(result["result"]["value"])

                screen = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": True}
                await call("Emulation.setDeviceMetricsOverride", **screen)
                await call("Page.navigate", url=f"http://127.0.0.1:{site.port}/docs")
                described = (await site.ask("GET", "/openapi.json")).json
                operations = sum(len(methods) for methods in described["paths"].values())
                # The page says nothing when it is done.
                while await value("document.querySelectorAll('details').length") < operations:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                await value("document.querySelectorAll('details').forEach(one => { one.open = true; }), 0")
                assert await value("document.documentElement.scrollWidth") == 400
    finally:
        browser.kill()
        await browser.wait()
