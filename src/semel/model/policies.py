"""Policies: settings that hold for every stream below a prefix, now and later.

A prefix consists of whole segments: `orders` holds for the streams `orders` and `orders/eu`, but
not for `orders2`. The empty prefix, the root, holds for all streams. The rules are in
`docs/reference/machine.md`.
"""

from typing import Final

from msgspec import Struct

from semel.model.limits import POLICY_PREFIX_BYTES_MAX
from semel.model.names import is_name

# The prefix of the policy that holds for all streams.
ROOT: Final = ""

# What is true of a stream that has no setting of its own and no policy.
BUILT_IN_DEDUP: Final = True

# Where a setting of a stream comes from, in responses.
OWN: Final = "own"
POLICY: Final = "policy"
BUILT_IN: Final = "built-in"


class SetPolicy(Struct, frozen=True, gc=False):
    """Set the policy of a prefix. It replaces the policy that the prefix had.

    `dedup` switches duplicate detection on or off. At least one setting must be given.
    """

    now_ms: int
    prefix: str
    dedup: bool | None = None


class DeletePolicy(Struct, frozen=True, gc=False):
    """Delete the policy of a prefix."""

    now_ms: int
    prefix: str


PolicyCommand = SetPolicy | DeletePolicy


class DedupSource(Struct, frozen=True, gc=False):
    """Where the setting for a stream's duplicate detection comes from.

    `is_own` is True if the setting is the stream's own. `prefix` is the prefix of the policy that
    decides. It is None if the setting is the stream's own, or if no policy decides. `pending` is
    the value that takes effect with a later append, or None if the stream already has this value.
    """

    is_own: bool = False
    prefix: str | None = None
    pending: bool | None = None

    @property
    def name(self) -> str:
        """OWN, POLICY or BUILT_IN."""
        if self.is_own:
            return OWN
        return BUILT_IN if self.prefix is None else POLICY


def invalid_policy_field(command: PolicyCommand) -> str | None:
    """Return the first invalid field of a command on a policy, or None."""
    if command.prefix and not is_name(command.prefix, POLICY_PREFIX_BYTES_MAX):
        return "prefix"
    return "dedup" if isinstance(command, SetPolicy) and command.dedup is None else None
