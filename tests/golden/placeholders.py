"""Placeholders for values that differ between two runs: ids, times, cursors, ports.

A value gets the next number of its kind when it occurs first, and keeps this placeholder. So two
recordings are equal if the same values are equal in both. Only cursors get a new number in every
response, because two of them may be equal by chance.
"""

import json
import os
import re
import struct
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import semel

_NEAR_MS: Final = 8 * 24 * 60 * 60 * 1000  # a tombstone stays for 7 days
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INSTANT: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"

# The alternatives are tried in this order.
_VALUES: Final = re.compile(
    rf'(?P<deadline>(?:(?<="deadline":")|(?<="until":")){_INSTANT})'
    rf"|(?P<time>{_INSTANT})"
    r"|(?P<token>wake1\.\d+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]{43})"
    r'|(?P<key>(?:(?<=ds_)|(?<="x":"))[A-Za-z0-9_-]{43})'
    r'|(?P<time_ms>(?:(?<=_at_ms":)|(?<="ts":))\d{13})'
    r'|(?P<duration>(?:(?<="age_ms":)|(?<="idle_ms":)|(?<="remaining_ms":)|(?<="heard_ms_ago":)'
    r'|(?<="lag_seconds":))\d+(?:\.\d+(?:e-\d+)?)?)'
    r'|(?P<state>(?<="version":")[0-9a-f]{8}(?="))'
    r"|(?P<id>(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f]))"
    r"|(?P<appender>(?<=append-)[0-9a-f]{16})"
    r"|(?P<incarnation>(?<![0-9a-f_])[0-9a-f]{16}(?![0-9a-f_]))"
    r'|(?P<cursor>(?:(?<=Stream-Cursor: )|(?<="streamCursor":")|(?<=cursor=))\d+)'
    r"|(?P<port>(?<=127\.0\.0\.1:)\d+)"
    r"|(?P<version>(?<=semel-python/)[0-9.]+)"
    r'|(?P<position>(?:(?<="durable":)|(?<= at byte ))\d+)'
    r"|(?P<segment>\d{20}(?=\.seg))"
)
_INCARNATION: Final = re.compile(r'(?:Stream-Incarnation: |"incarnation":")([0-9a-f]{16})')
_PLACEHOLDER: Final = re.compile(
    r"<(?P<kind>deadline|time|token|key|id|appender|incarnation|cursor)-(?P<number>\d+)(?P<form>:ms|:u64)?>"
    r"|<(?P<only>duration|state|port|version|position|segment)>"
)
# The values of placeholders without a number, for which no value is known.
_DURATION_MS: Final = 1000
_STATE: Final = "00000000"  # of a member of a group
_POSITION: Final = 4096


class Placeholders:
    """Maps values to placeholders and back."""

    def __init__(self) -> None:
        self.port = 0
        self._names: dict[tuple[str, str], str] = {}
        self._values: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._incarnations: set[str] = set()

    # ---- from values to placeholders -------------------------------------------------------------

    def learn_incarnations(self, response: str) -> None:
        """Remember the incarnations in a response, because they look like other numbers."""
        self._incarnations.update(_INCARNATION.findall(response))

    def normalise(self, text: str, *, is_response: bool = False) -> str:
        """Replace the values that differ between two runs by placeholders."""

        def placeholder(found: re.Match[str]) -> str:
            kind, value = str(found.lastgroup), found[0]
            if kind in ("time", "deadline"):
                return self._of_instant(kind, value)
            if kind == "time_ms":
                return self._of_time_ms(int(value), ":ms") or value
            if kind in ("token", "key", "id", "appender"):
                return self._name(kind, value)
            if kind == "incarnation":
                return self._name(kind, value) if value in self._incarnations else value
            if kind == "cursor":
                return self._name(kind, value, is_new=is_response)
            if kind == "port":
                self.port = int(value)
            return f"<{kind}>"

        return _VALUES.sub(placeholder, text)

    def normalise_value(self, value: Any, key: str = "") -> Any:
        """Do the same in dicts, lists and plain values; the key gives the kind of a number."""
        if isinstance(value, dict):
            return {
                self.normalise(name): self.normalise_value(inner, name)
                for name, inner in value.items()
            }
        if isinstance(value, list):
            return [self.normalise_value(inner, key) for inner in value]
        start = f'"{key}":'
        if isinstance(value, str):
            return self.normalise(f'{start}"{value}')[len(start) + 1 :]
        text = self.normalise(start + json.dumps(value))[len(start) :]
        return text if text.startswith("<") else value

    def of_binary_time(self, time_ms: int) -> str:
        """Return the placeholder of a time that is stored in eight bytes."""
        name = self._of_time_ms(time_ms, ":u64")
        assert name is not None, f"{time_ms} is not a time of this run"
        return name

    def _of_instant(self, kind: str, text: str) -> str:
        time_ms = round((datetime.fromisoformat(text) - _EPOCH) / timedelta(milliseconds=1))
        return self._name(kind, str(time_ms)) if _is_near(time_ms) else text

    def _of_time_ms(self, time_ms: int, form: str) -> str | None:
        if not _is_near(time_ms):
            return None
        return self._name("time", str(time_ms)).removesuffix(">") + f"{form}>"

    def _name(self, kind: str, value: str, *, is_new: bool = False) -> str:
        name = None if is_new else self._names.get((kind, value))
        if name is None:
            self._counts[kind] += 1
            name = f"<{kind}-{self._counts[kind]}>"
            self._bind(kind, name, value)
        return name

    def _bind(self, kind: str, name: str, value: str) -> None:
        self._names[kind, value] = name
        self._values[name] = value
        if kind == "incarnation":
            self._incarnations.add(value)

    # ---- from placeholders to values -------------------------------------------------------------

    def fill(self, text: str) -> str:
        """Replace placeholders by their values, or by new values if none are known."""

        def value(found: re.Match[str]) -> str:
            if found["only"] is not None:
                return self._only(found["only"])
            kind, name = found["kind"], f"<{found['kind']}-{found['number']}>"
            if name not in self._values:
                number = int(found["number"])
                self._counts[kind] = max(self._counts[kind], number)
                self._bind(kind, name, _invented(kind, number))
            return _printed(kind, self._values[name], found["form"])

        return _PLACEHOLDER.sub(value, text)

    def _only(self, kind: str) -> str:
        values = {
            "duration": _DURATION_MS,
            "state": _STATE,
            "port": self.port,
            "version": semel.__version__,
            "position": _POSITION,
            "segment": f"{_POSITION:020d}",
        }
        return str(values[kind])


def _is_near(time_ms: int) -> bool:
    """Return whether a time is from this run, and not chosen by the scenario."""
    return abs(time_ms - time.time() * 1000) < _NEAR_MS


def _invented(kind: str, number: int) -> str:
    if kind in ("time", "deadline"):
        return str(int(time.time() * 1000) + number)
    if kind == "cursor":
        return str(1_000_000_000 + number)
    return os.urandom(16 if kind == "id" else 8).hex()


def _printed(kind: str, value: str, form: str | None) -> str:
    if kind not in ("time", "deadline") or form == ":ms":
        return value
    if form == ":u64":
        return struct.pack("<q", int(value)).decode("latin-1")
    instant = _EPOCH + timedelta(milliseconds=int(value))
    return instant.strftime("%Y-%m-%dT%H:%M:%S.") + f"{instant.microsecond // 1000:03d}Z"
