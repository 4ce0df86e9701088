"""Events on tokens and owners. See `events.py`."""

from msgspec import Struct

from semel.machine.rows import OwnedKey, TokenRow


class TokenCreated(Struct, frozen=True, gc=False, array_like=True):
    """A token is stored. `replaced` has the ids of older tokens whose rows are dropped."""

    id: str
    row: TokenRow
    replaced: tuple[str, ...] = ()


class TokensRevoked(Struct, frozen=True, gc=False, array_like=True):
    """Tokens are revoked, at the time of the frame."""

    ids: tuple[str, ...]


class TokensUsed(Struct, frozen=True, gc=False, array_like=True):
    """Tokens were last used at these times, as pairs of an id and milliseconds since 1970."""

    uses: tuple[tuple[str, int], ...]


class OwnersChanged(Struct, frozen=True, gc=False, array_like=True):
    """Things get the owner `owner`, or lose their owner if it is None."""

    owner: str | None
    things: tuple[OwnedKey, ...]


AccessEvent = TokenCreated | TokensRevoked | TokensUsed | OwnersChanged
