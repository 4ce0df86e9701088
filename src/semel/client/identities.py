"""Under which producer a client's transactions are begun."""

from semel.client.values import Registration


class Identities:
    """The producers a client has registered, each once.

    To register a producer fences its older instances, and aborts what they have open. So a client
    does that once for each id, and keeps the epoch it was given. It never takes an id back after it
    was fenced: the newer instance has done so rightfully, and two that fence one another in turn
    would get nothing done.

    Ids the server has given out are lent to one transaction at a time.
    """

    def __init__(self) -> None:
        self._named: dict[str, Registration] = {}
        self._idle: list[Registration] = []

    def take(self, producer_id: str | None) -> Registration | None:
        """Give what is registered already; None if it must be registered first."""
        if producer_id is not None:
            return self._named.get(producer_id)
        return self._idle.pop() if self._idle else None

    def add(self, producer_id: str | None, found: Registration) -> Registration:
        """Take note of a registration."""
        if producer_id is not None:
            self._named[producer_id] = found
        return found

    def give_back(self, producer_id: str | None, used: Registration) -> None:
        """Take back an id that was lent, once its transaction is decided."""
        if producer_id is None:
            self._idle.append(used)


def checked_owner(producer_id: str | None, epoch: int | None) -> Registration | None:
    """Read an identity that is the caller's own business; None if it is ours."""
    if epoch is None:
        return None
    if producer_id is None:
        raise ValueError("producer_epoch needs a producer_id")
    return Registration(producer_id, epoch)
