"""Everything at once for a long time: nothing may differ, fail or be left behind.

Starts `interlingua serve` with adapters and a KV pool that is too small for its load, so that cached prompts are
thrown out all the time, and requests wait or begin again. Asks for the whole answers of a set of requests in every
dialect of `soak_kinds.py`, gRPC's too (greedy and sampled, with stops, grammars and adapters, in several scripts), and
streams each once. Then, for as long as it is told to:

- of what workers do in turn, 25 % are clients that leave, before the first byte or in the middle, half of them with a
  reset; 5 % are bad requests; 2 % have a time limit that they cannot keep; the rest are whole answers and streams,
  which must say what they said before;
- now and then a burst comes that is more than the server takes: what it refuses must be 429, at once;
- an adapter is loaded, used, unloaded under a running stream and asked for again, and one in use is loaded anew.

Afterwards every request has had exactly one ending, by what the clients saw and by the server's own count, of the
kinds that were provoked alone; gauges and tasks are what they were before, no socket or thread is left. Memory is
judged twice: rounds of the same load go on until one adds next to nothing, which one must do soon, and in the second
half of a long run it is no larger than in the first. Prints one JSON line; exits with 1 when something did not hold.

    python bench/soak.py [--seconds 1800] [--streams 32] [-- FLAG OF serve ...]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import uvloop
from server import Server, running
from soak_kinds import GRPC, Client, RefusedError, bad_requests, case, endless, kinds, late_requests

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from tiny_adapters import adapter_weights, demo_shapes, write_adapter

LIMIT = 96  # requests that the server takes at once
POOL = ("--kv-memory", "32MiB", "--max-concurrent-requests", str(LIMIT))
KEY = "soak"
ADAPTERS = ("one", "two")
GUEST = "guest"  # the adapter that comes and goes
# A server grows while threads do for the first time what others did before them; how long that goes on depends on the
# machine. One that leaks grows with every round, by its leak times the 250 requests of a round.
STEADY_MB, ROUNDS = 5, 6  # a round that adds less ends the rounds; the last one may not be needed
GROWTH_MB = 24  # that a warm server's memory may move
LONG = 300.0  # seconds: all is warm in the middle of a longer run
VANISHING, BAD, LATE = 0.25, 0.05, 0.02  # shares of what workers do
BURST_EVERY = 10.0  # seconds
ADAPT_EVERY = 2.0
PARTS = 10  # of the run, each of which tells its largest memory
# What a server that does nothing holds: as much before as after.
HELD = (
    *("tgi_queue_size", "tgi_batch_current_size", "interlingua_requests_inside", "interlingua_kv_blocks_used"),
    "interlingua_tasks",
)
_SLACK = 8  # sockets and threads that may come and go


@dataclass(slots=True, kw_only=True)
class Report:
    """What happened. `faults` must stay empty."""

    streams: int = 0
    wholes: int = 0
    events: int = 0  # of streams
    vanished: int = 0
    bad: int = 0
    late: int = 0  # ended by their own time limit
    bursts: int = 0
    refused: int = 0  # with 429
    adapters: int = 0  # loaded while running
    preemptions: int = 0
    kinds: dict[str, int] = field(default_factory=dict)  # whole answers and streams by dialect
    seconds: float = 0.0
    resident_mb: list[int] = field(default_factory=list)  # after the start, warm, largest of each part, in the end
    rounds_mb: list[int] = field(default_factory=list)  # after the same load again and again
    held: dict[str, float] = field(default_factory=dict)  # by a warm server: gauges, and open files with threads
    endings: dict[str, int] = field(default_factory=dict)  # as the server counts them
    faults: list[str] = field(default_factory=list)
    answers: dict[int, str] = field(default_factory=dict, repr=False)  # by number of the request

    @property
    def warm_mb(self) -> int:
        """The largest memory of the first half: every kind of request has run by then, on a busy machine too."""
        return max(self.resident_mb[1 : 1 + len(self.resident_mb) // 2])


class Soak:
    """The clients of one server, which was started by `serving`."""

    def __init__(self, server: Server, folders: dict[str, Path], streams: int, cases: int, seed0: int) -> None:
        self.report = Report(resident_mb=[_megabytes(server.resident)])
        self._server = server
        self._folders = folders
        self._streams = streams
        self._dice = random.Random(seed0)
        self._kinds = kinds(server.model)
        self._cases = {n: case(n, self._kinds, ADAPTERS) for n in range(seed0, seed0 + cases)}
        self._bad = bad_requests(server.model)
        self._late = late_requests(server.model)
        self._idle = _idle(server)

    async def run(self, seconds: float, vanishing: int = 0) -> Report:
        report, begun = self.report, time.monotonic()
        before = await asyncio.to_thread(self._server.endings)
        async with self._connected():
            await self._in_parallel(self._whole, self._cases)
            await self._in_parallel(self._stream, self._cases)
            await self._noting(self._adapt(0), -1)
            await self._burst()
        report.held = await self._settled()
        report.resident_mb.append(_megabytes(self._server.resident_now()))
        async with self._connected():
            end = time.monotonic() + seconds
            sampling = asyncio.create_task(self._sample(time.monotonic(), seconds))
            await asyncio.gather(
                self._in_parallel(self._mixed, _until(end, tuple(self._cases), self._dice)),
                self._burst_until(end),
                self._adapt_until(end),
            )
            await asyncio.gather(*(self._vanish(number) for number in range(vanishing)))
            sampling.cancel()
        held = await self._settled()
        report.resident_mb.append(_megabytes(self._server.resident_now()))
        await self._rounds()
        report.seconds = round(time.monotonic() - begun, 1)
        if held["open files"] > report.held["open files"] + _SLACK:
            report.faults.append(f"left behind: {held}, before {report.held}")
        if seconds >= LONG and report.resident_mb[-1] > report.warm_mb + GROWTH_MB:
            report.faults.append(f"memory has grown: {report.resident_mb} MB")
        self._count(before, await asyncio.to_thread(self._server.endings))
        report.faults += self._server.errors  # a server that is well says nothing
        return report

    async def _rounds(self) -> None:
        """Everything once more, until memory stays where it was."""
        sizes = self.report.rounds_mb
        sizes.append(self.report.resident_mb[-1])
        for turn in range(ROUNDS):
            async with self._connected():
                await self._in_parallel(self._mixed, 2 * tuple(self._cases))
                await asyncio.gather(*(self._vanish(number) for number in range(self._streams)))
                await self._noting(self._adapt(turn), -1)
                await self._burst()
            await self._settled()
            sizes.append(_megabytes(self._server.resident_now()))
            if sizes[-1] - sizes[-2] < STEADY_MB:
                return
        self.report.faults.append(f"memory grows with every round: {sizes} MB")

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        """Clients with connections, which are closed when the block ends."""
        async with (
            aiohttp.ClientSession(
                self._server.url,
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=300),
            ) as session,
            grpc.aio.insecure_channel(self._server.grpc) as channel,
        ):
            self._client = Client(session, channel)
            yield

    # --- what clients do ------------------------------------------------------------------------------------

    async def _in_parallel(self, work: Callable[[int], Awaitable[None]], numbers: Iterable[int]) -> None:
        """`_streams` workers take turns at the numbers."""
        numbers = iter(numbers)

        async def worker() -> None:
            for number in numbers:
                await self._noting(work(number), number)

        await asyncio.gather(*(worker() for _ in range(self._streams)))

    async def _noting(self, work: Awaitable[None], number: int) -> None:
        """Whatever goes wrong on the way is a fault of the server."""
        try:
            await work
        except (
            RefusedError,
            aiohttp.ClientError,
            grpc.aio.AioRpcError,
            OSError,
            EOFError,
            LookupError,
            ValueError,
        ) as problem:
            self.report.faults.append(f"{type(problem).__name__}: {problem} in {self._cases.get(number)}")

    async def _mixed(self, number: int) -> None:
        draw = self._dice.random()
        if draw < VANISHING:
            await self._vanish(self._dice.randrange(1 << 20))
        elif draw < VANISHING + BAD:
            wrong = self._dice.choice(self._bad)
            await self._patiently(lambda: self._refusal(*wrong))  # what the model alone can tell needs a place inside
            self.report.bad += 1
        elif draw < VANISHING + BAD + LATE:
            await self._patiently(lambda: self._refusal(*self._dice.choice(self._late)))
            self.report.late += 1
        elif draw < 0.65:
            await self._stream(number)
        else:
            await self._whole(number)

    async def _patiently(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """What a client gets that comes again while the server is full."""
        while True:
            try:
                return await work()
            except RefusedError as refusal:
                if refusal.status != 429:
                    raise
            self.report.refused += 1
            await asyncio.sleep(self._dice.uniform(0.05, 0.5))

    async def _whole(self, number: int) -> None:
        wanted = self._cases[number]
        self._compare(number, await self._patiently(lambda: self._client.whole(wanted)))
        self.report.wholes += 1

    def _compare(self, number: int, text: str) -> None:
        """`text` is what the case has said from the beginning."""
        wanted = self._cases[number]
        self.report.kinds[wanted.kind.name] = self.report.kinds.get(wanted.kind.name, 0) + 1
        first = self.report.answers.setdefault(number, text)
        if text != first:
            raise ValueError(f"says {text!r}, and before {first!r}")
        if not wanted.accepts(text):
            raise ValueError(f"the grammar has no {text!r}")

    async def _stream(self, number: int) -> None:
        wanted = self._cases[number]
        if not wanted.kind.stream_path:
            await self._whole(number)
            return

        async def events() -> list[Any]:
            return [event async for event in self._client.events(wanted)]

        heard = await self._patiently(events)
        self.report.streams += 1
        self.report.events += len(heard)
        self._compare(number, wanted.kind.joined(heard, wanted.prompt))

    async def _refusal(self, path: str, body: Any, status: int) -> None:
        """Raises RefusedError for another status than the one expected."""
        try:
            await self._client.send(path, body)
        except RefusedError as refusal:
            if refusal.status != status:
                raise
        else:
            raise ValueError(f"{path} {body!r}: 200, not {status}")

    async def _burst_until(self, end: float) -> None:
        """A burst now and then."""
        while time.monotonic() + BURST_EVERY / 2 < end:
            await asyncio.sleep(BURST_EVERY / 2)
            await self._burst()
            await asyncio.sleep(BURST_EVERY / 2)

    async def _burst(self) -> None:
        """More at once than the server takes. Each is answered or refused."""

        async def one(number: int) -> None:
            try:
                self._compare(number, await self._client.whole(self._cases[number]))
                self.report.wholes += 1
            except RefusedError as refusal:
                if refusal.status != 429:
                    raise
                self.report.refused += 1

        self.report.bursts += 1
        before = self.report.refused
        numbers = self._dice.choices(tuple(self._cases), k=LIMIT + 32)
        await asyncio.gather(*(self._noting(one(number), number) for number in numbers))
        if self.report.refused == before:
            self.report.faults.append("a burst over the limit, and nobody was refused")

    async def _vanish(self, number: int) -> None:
        """Reads something of a long answer, or nothing, and leaves; over HTTP half of all with a reset."""
        wanted, amount = endless(number, self._kinds, ADAPTERS), number % 10
        self.report.vanished += 1
        if wanted.kind.name == GRPC:
            with contextlib.suppress(RefusedError):  # the server was full
                events = self._client.events(wanted)
                async with contextlib.aclosing(events):  # type: ignore[type-var]
                    for _ in range(amount):
                        await anext(events)
            return
        path, body = wanted.kind.path, wanted.body
        if wanted.kind.stream_path:
            path, body = wanted.kind.stream_path, body | {"stream": True}
        data = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        writer.write(f"POST {path} HTTP/1.1\r\nhost: soak\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        if amount and wanted.kind.stream_path:
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 429 " not in head.splitlines()[0]:
                await reader.readexactly(64 * amount)
        if number % 2:
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        else:
            writer.close()

    # --- adapters that come and go --------------------------------------------------------------------------

    async def _adapt_until(self, end: float) -> None:
        turn = 0
        while time.monotonic() + ADAPT_EVERY < end:
            turn += 1
            await self._noting(self._adapt(turn), -1)
            await asyncio.sleep(ADAPT_EVERY)

    async def _adapt(self, turn: int) -> None:
        """Loads the guest, a copy of another one, and unloads it under a stream, which must end as the other's."""
        name = ADAPTERS[turn % len(ADAPTERS)]
        await self._control("load", lora_name=GUEST, lora_path=str(self._folders[name]))
        number = self._dice.choice([n for n, one in self._cases.items() if one.parameters.get("adapter_id") == name])
        wanted = self._cases[number]
        wanted = replace(wanted, parameters=wanted.parameters | {"adapter_id": GUEST})

        async def unloaded_meanwhile() -> list[Any]:
            heard = []
            async for event in self._client.events(wanted):
                if not heard:
                    await self._control("unload", lora_name=GUEST)
                heard.append(event)
            return heard

        heard = await self._patiently(unloaded_meanwhile)
        self.report.streams += 1
        self.report.events += len(heard)
        self._compare(number, wanted.kind.joined(heard, wanted.prompt))
        status = 404 if wanted.kind.path.startswith("/v1") else 422
        await self._patiently(lambda: self._refusal(wanted.kind.path, wanted.body, status))
        self.report.bad += 1
        await self._control("load", lora_name=name, lora_path=str(self._folders[name]))
        self.report.adapters += 2

    async def _control(self, what: str, **body: str) -> None:
        await self._client.send(f"/v1/{what}_lora_adapter", body, {"authorization": f"Bearer {KEY}"})

    # --- the reckoning --------------------------------------------------------------------------------------

    def _count(self, before: dict[str, int], after: dict[str, int]) -> None:
        """Compares the server's count of endings with what the clients did."""
        report = self.report
        ended = {kind: count - before.get(kind, 0) for kind, count in after.items()}
        report.endings = {kind: count for kind, count in ended.items() if count}
        received = ended.pop("received")
        if received != sum(ended.values()):
            report.faults.append(f"{received} requests, but {ended} ended")
        seen = {
            "whole answers": (report.wholes + report.streams, ended["success"]),
            "bad requests": (report.bad, ended.get("validation", 0) + ended.get("not_found", 0)),
            "refusals": (report.refused, ended.get("overloaded", 0)),
            "late ones": (report.late, ended.get("timeout", 0)),
        }
        # Of those that left, some did so too late, and some found the server full.
        unseen = {"whole answers": report.vanished, "refusals": report.vanished}
        for what, (by_clients, by_server) in seen.items():
            if not by_clients <= by_server <= by_clients + unseen.get(what, 0):
                report.faults.append(f"{by_clients} {what}, but {by_server} counted")
        strange = ended.keys() - {"success", "dropped", "overloaded", "validation", "not_found", "timeout"}
        if any(ended[kind] for kind in strange):
            report.faults.append(f"endings that nobody provoked: {report.endings}")
        clients = sum(by_clients for by_clients, _ in seen.values()) + report.vanished
        if received > clients:
            report.faults.append(f"{clients} clients, but {received} requests")

    async def _settled(self, seconds: float = 30) -> dict[str, float]:
        """What the server holds when its clients are gone: a fault if that is more than before they came."""
        end = time.monotonic() + seconds
        while True:
            gauges = await asyncio.to_thread(self._server.gauges)
            self.report.preemptions = int(gauges["interlingua_preemptions_total"])
            held = {name: gauges[name] for name in self._idle} | {"open files": _open_files(self._server)}
            left = {name: held[name] for name, value in self._idle.items() if held[name] > value}
            if not left:
                return held
            if time.monotonic() > end:
                self.report.faults.append(f"left behind: {left}, before {self._idle}")
                return held
            await asyncio.sleep(0.05)

    async def _sample(self, begun: float, seconds: float) -> None:
        """Writes down the largest memory of each part of the run."""
        parts = self.report.resident_mb
        first = len(parts)
        while True:
            await asyncio.sleep(0.5)
            part = first + min(PARTS - 1, int(PARTS * (time.monotonic() - begun) / max(seconds, 1)))
            parts += [0] * (part + 1 - len(parts))
            parts[part] = max(parts[part], _megabytes(self._server.resident_now()))


def _until(end: float, numbers: Sequence[int], dice: random.Random) -> Iterable[int]:
    while time.monotonic() < end:
        yield dice.choice(numbers)


def _idle(server: Server) -> dict[str, float]:
    """What a server holds that nobody has asked anything yet: the most of two seconds, since a task comes and goes."""
    looks = []
    for _ in range(20):
        looks.append(server.gauges())
        time.sleep(0.1)
    return {name: max(gauges[name] for gauges in looks) for name in HELD}


def _open_files(server: Server) -> int:
    """Files, sockets and threads of the server's process."""
    process = Path(f"/proc/{server.process.pid}")
    return len(list((process / "fd").iterdir())) + len(list((process / "task").iterdir()))


def _megabytes(size: int) -> int:
    return round(size / 1e6)


@contextlib.contextmanager
def serving(flags: Sequence[str] = POOL) -> Iterator[tuple[Server, dict[str, Path]]]:
    """A server for `soak`, and the folders of its adapters by name."""
    with tempfile.TemporaryDirectory() as made:
        shapes = demo_shapes()
        folders = {name: write_adapter(Path(made) / name, adapter_weights(shapes, name, 16, 0.5)) for name in ADAPTERS}
        loaded = ",".join(f"{name}={folder}" for name, folder in folders.items())
        with running(
            [*flags, "--grpc-port", "0", "--admin-key", KEY, "--log-level", "warning", "--lora-adapters", loaded]
        ) as server:
            yield server, folders


async def soak(
    served: tuple[Server, dict[str, Path]],
    *,
    seconds: float,
    streams: int = 32,
    cases: int = 108,
    seed0: int = 0,
    vanishing: int = 0,
) -> Report:
    """Runs the soak against a server that nobody else uses. `cases` of 36 or more have one of every kind."""
    return await Soak(*served, streams, cases, seed0).run(seconds, vanishing)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=1800, help="how long to go on")
    parser.add_argument("--streams", type=int, default=32, help="workers at the same time")
    parser.add_argument("--cases", type=int, default=108, help="different requests, 36 at the least")
    parser.add_argument("--vanishing", type=int, default=100, help="clients that leave at once in the end")
    parser.add_argument("--seed0", type=int, default=0, help="number of the first request")
    parser.add_argument("flags", nargs="*", default=POOL, metavar="-- FLAG", help="flags of `interlingua serve`")
    given = parser.parse_args(arguments)
    wanted = {name: getattr(given, name) for name in ("seconds", "streams", "cases", "vanishing", "seed0")}
    with serving(given.flags) as served:
        report = uvloop.run(soak(served, **wanted))
    print(json.dumps({name: value for name, value in asdict(report).items() if name != "answers"}, ensure_ascii=False))
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
