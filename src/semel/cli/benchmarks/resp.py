"""As much of the Redis protocol as an append needs."""

from semel.cli.benchmarks.requests import BadAnswer, Source


def command(*words: bytes) -> bytes:
    """Make a command."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def xadd_appends(names: list[str], body: bytes) -> Source:
    """Append to one stream after another, for ever."""
    requests = [command(b"XADD", name.encode(), b"*", b"d", body) for name in names]
    turn = 0

    def next_request() -> bytes:
        nonlocal turn
        turn = (turn + 1) % len(requests)
        return requests[turn]

    return next_request


def redis_answer_bytes(data: bytes) -> int:
    """How many bytes the bulk string at the start of `data` has; 0 if it is not whole."""
    if not data.startswith(b"$"):
        raise BadAnswer(data[:200].decode("latin-1"))
    end = data.find(b"\r\n")
    if end < 0:
        return 0
    total = end + 2 + int(data[1:end]) + 2
    return total if total <= len(data) else 0
