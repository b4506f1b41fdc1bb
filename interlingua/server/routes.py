"""Which handler answers a method and a path, and whose error shape a path without one gets.

Plain dictionaries, because a router that tries one pattern after the other costs more than all the rest of a
small request.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType

from interlingua.contract.dialect import Dialect, Reply
from interlingua.contract.errors import RequestError
from interlingua.server.exchange import Exchange

Handler = Callable[[Exchange], Awaitable[None]]
RenderError = Callable[[RequestError], Reply]


class Plane(Enum):
    """Who a route is for. Each plane can have an address of its own; without one it shares the data address."""

    DATA = "data"  # clients
    MANAGEMENT = "management"  # those who run the server
    METRICS = "metrics"
    SHARED = "shared"  # clients and those who run the server: health and information


@dataclass(frozen=True, slots=True)
class SystemRoute:
    """A route of the server itself."""

    method: str
    path: str
    handler: Handler
    plane: Plane = Plane.DATA


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What stands at a method and a path. `render_error` gives refusals before the handler their shape."""

    handler: Handler
    render_error: RenderError
    path: str = ""  # the template, without a dialect's prefix


@dataclass(slots=True)
class _Node:
    """A place in the tree of path segments. `parameter` is the child that takes any segment."""

    children: dict[str, _Node] = field(default_factory=dict)
    parameter: _Node | None = None
    names: tuple[str, ...] = ()  # of the parameters on the way here
    endpoints: dict[str, Endpoint] = field(default_factory=dict)  # by method


class RouteTable:
    """Path templates (`/v2/models/{model}/generate`) to endpoints. A literal wins over a parameter."""

    def __init__(self) -> None:
        self._root = _Node()
        self._literal: dict[str, _Node] = {}  # templates without parameters, by path
        self.templates: set[tuple[str, str]] = set()  # (method, path) of all that was added

    def add(self, method: str, path: str, endpoint: Endpoint) -> None:
        """Raises ValueError when something stands there already: two dialects would clash."""
        node = self._root
        names: list[str] = []
        for segment in path.split("/"):
            if segment.startswith("{") and segment.endswith("}"):
                names.append(segment[1:-1])
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.children.setdefault(segment, _Node())
        if method in node.endpoints:
            raise ValueError(f"two routes claim {method} {path}")
        node.names = tuple(names)
        node.endpoints[method] = endpoint
        self.templates.add((method, path))
        if not names:
            self._literal[path] = node

    def find(self, path: str) -> tuple[Mapping[str, Endpoint], Mapping[str, str]]:
        """(endpoints by method, path parameters); no endpoints = no such path."""
        literal = self._literal.get(path)
        if literal is not None:
            return literal.endpoints, {}
        found = _walk(self._root, path.split("/"), 0, ())
        if found is None:
            return {}, {}
        node, values = found
        return node.endpoints, dict(zip(node.names, values, strict=True))


def _walk(node: _Node, segments: list[str], at: int, values: tuple[str, ...]) -> tuple[_Node, tuple[str, ...]] | None:
    if at == len(segments):
        return (node, values) if node.endpoints else None
    segment = segments[at]
    child = node.children.get(segment)
    if child is not None:
        found = _walk(child, segments, at + 1, values)
        if found is not None:
            return found
    if node.parameter is not None and segment:
        return _walk(node.parameter, segments, at + 1, (*values, segment))
    return None


def discover(package: str = "interlingua.dialects") -> tuple[Dialect, ...]:
    """Every `DIALECT` in the modules of `package`, by name; modules that begin with `_` are helpers."""
    root = importlib.import_module(package)
    names = sorted(info.name for info in pkgutil.iter_modules(root.__path__) if not info.name.startswith("_"))
    return tuple(_dialect(importlib.import_module(f"{package}.{name}")) for name in names)


def _dialect(module: ModuleType) -> Dialect:
    dialect = getattr(module, "DIALECT", None)
    if not isinstance(dialect, Dialect):
        raise ValueError(f"{module.__name__} exports no DIALECT")
    return dialect


def paths_of(dialect: Dialect, path: str) -> Iterable[str]:
    """Where a route of `dialect` stands: at its own path and below the dialect's prefix."""
    yield path
    if dialect.prefix:
        yield dialect.prefix + path
        if path == "/":
            yield dialect.prefix
