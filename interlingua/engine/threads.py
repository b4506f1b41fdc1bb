"""Long work beside the event loop, for which a program that is told to stop does not wait."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar, cast

T = TypeVar("T")
PREFIX = "interlingua-"  # of the names of threads that a program may leave behind when it ends


async def in_thread(name: str, work: Callable[[], T]) -> T:
    """Runs `work` in a thread that nobody waits for when the program ends, unlike the event loop's own."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, problem: BaseException | None) -> None:
        if done.cancelled():
            return
        if problem is not None:
            done.set_exception(problem)
        else:
            done.set_result(cast(T, result))

    def run() -> None:
        result: T | None = None
        problem: BaseException | None = None
        try:
            result = work()
        except BaseException as error:
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the program is ending
            loop.call_soon_threadsafe(finish, result, problem)

    threading.Thread(target=run, name=PREFIX + name, daemon=True).start()
    return await done


def left() -> bool:
    """Whether such a thread still works. In native code it cannot bear an interpreter that ends: Python ends a thread
    that asks for the interpreter's lock then, and C++ ends the process for it."""
    return any(thread.name.startswith(PREFIX) for thread in threading.enumerate())
