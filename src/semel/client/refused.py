"""The base classes of the client's errors, which `semel.client.errors` defines."""

from collections.abc import Mapping
from typing import Generic, TypeVar, overload

from semel.model.errors import SemelError
from semel.wire.refusal_table import ADVICE, BY_CODE

T = TypeVar("T")

NO = "no"
UNKNOWN = "unknown"
# Maps the name of each error class to its code. A class for several codes sets its own
# `code` attribute.
_CODES = {entry.error: code for code, entry in BY_CODE.items()}


class ClientError(SemelError):
    """Base class for the errors that the client raises."""

    advice: str = ""
    applied: str = NO

    def __init_subclass__(cls) -> None:
        """Set `code` and `advice` to the class's entries in `_CODES` and `ADVICE`, if any."""
        if "code" not in vars(cls):
            cls.code = _CODES.get(cls.__name__, cls.code)
        cls.advice = ADVICE.get(cls.__name__, cls.advice)

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} ({self.advice})" if self.advice else self.message


class Refused(ClientError):
    """The server refused the request.

    `facts` holds the members of the response's problem document, except code, message and applied.
    """

    code = "refused"

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        code: str | None = None,
        applied: str = NO,
        facts: Mapping[str, object] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.applied = applied
        self.facts = dict(facts or {})
        if code is not None:
            self.code = code


class Fact(Generic[T]):
    """A descriptor that returns the value of `name` in an error's `facts`.

    Returns `default` if the server did not send the value, or sent a value of the wrong type.
    """

    def __init__(self, kind: type[T], name: str, default: T | None = None) -> None:
        self._kind = kind
        self._name = name
        self._default = default

    @overload
    def __get__(self, error: None, owner: type) -> "Fact[T]": ...

    @overload
    def __get__(self, error: Refused, owner: type) -> T | None: ...

    def __get__(self, error: Refused | None, owner: type) -> "T | Fact[T] | None":
        if error is None:
            return self
        value = error.facts.get(self._name)
        return value if isinstance(value, self._kind) else self._default
