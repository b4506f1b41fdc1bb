"""Every error that a caller or an operator can cause, as one tree.

InterlinguaError
├── RequestError                    the caller's request; a dialect renders it with the status of its kind
│   ├── ValidationError             a field is wrong: names the field, the accepted range, the given value
│   │   └── NotSupportedError       a good value that this server or model cannot honour
│   ├── PayloadTooLargeError        the body is over the limit
│   ├── UnauthorizedError           no key, or a wrong one
│   ├── ForbiddenError              the key, or the address, does not allow this
│   ├── NotFoundError               no such route
│   │   └── UnknownModelError       no such model
│   ├── MethodNotAllowedError       the route exists, the method does not
│   ├── OverloadedError             no permit free: refused at once
│   ├── UnavailableError            loading, stopping, or the engine makes no progress
│   ├── RequestTimeoutError         the request's own time limit has passed
│   ├── GenerationError             the engine failed on this request alone
│   └── IncompleteGenerationError   the engine ended the stream without a last token
├── CancelledError                  the client left; never rendered, only counted
└── ModelError                      a bad start (file, architecture, memory): one line, exit code 2
    └── AddressInUseError           another process listens there, maybe not for long: one line, exit code 1

Each class has a stable snake_case `kind`, used in metrics, logs and by dialects to choose a status.
"""

from __future__ import annotations

from typing import ClassVar


class InterlinguaError(Exception):
    """Root of the tree. `message` is for people and holds no exception text of foreign code."""

    kind: ClassVar[str] = "internal"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RequestError(InterlinguaError):
    """A request that ends without an answer, with a status that the dialect chooses by `kind`."""

    kind: ClassVar[str] = "request"


class ValidationError(RequestError):
    """A field of the request is wrong.

    Args:
        field: the wire name of the field, as the caller wrote it (`parameters.top_p`, `inputs`).
        problem: what is wrong, without the name of the field; says what is accepted and what was given.
    """

    kind: ClassVar[str] = "validation"

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"`{field}` {problem}" if field else problem)
        self.field = field
        self.problem = problem


class NotSupportedError(ValidationError):
    """A value that is good by the contract and that this server cannot honour."""

    kind: ClassVar[str] = "validation"


class PayloadTooLargeError(RequestError):
    kind: ClassVar[str] = "payload_too_large"


class UnauthorizedError(RequestError):
    kind: ClassVar[str] = "unauthorized"


class ForbiddenError(RequestError):
    kind: ClassVar[str] = "forbidden"


class NotFoundError(RequestError):
    kind: ClassVar[str] = "not_found"


class UnknownModelError(NotFoundError):
    """A request names a model that is not served. `adapters` are those that it could name too, with commas between."""

    def __init__(self, model: str, served: str, adapters: str = "") -> None:
        others = f" and the adapters {adapters} are" if adapters else " is"
        super().__init__(f'model "{model}" is not served here; "{served}"{others}')


class MethodNotAllowedError(RequestError):
    """The path exists. `allowed` lists the methods for the `Allow` header."""

    kind: ClassVar[str] = "method_not_allowed"

    def __init__(self, message: str, allowed: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allowed = allowed


class OverloadedError(RequestError):
    """All permits are taken. `retry_after` is in whole seconds."""

    kind: ClassVar[str] = "overloaded"

    def __init__(self, message: str, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnavailableError(RequestError):
    kind: ClassVar[str] = "unavailable"


class RequestTimeoutError(RequestError):
    kind: ClassVar[str] = "timeout"


class GenerationError(RequestError):
    kind: ClassVar[str] = "generation"


class IncompleteGenerationError(RequestError):
    kind: ClassVar[str] = "incomplete_generation"


class CancelledError(InterlinguaError):
    """The client left, or an operator stopped the request."""

    kind: ClassVar[str] = "cancelled"


class ModelError(InterlinguaError):
    """The server cannot start as asked. The command line prints `message` as one line and exits with code 2."""

    kind: ClassVar[str] = "model"


class AddressInUseError(ModelError):
    """Another process listens at the server's address. It may be about to end: the exit code is 1, which has a
    supervisor try again."""

    kind: ClassVar[str] = "address_in_use"
