"""Every address with every right: the matrix of routes, scopes and tokens.

The expected answer of a cell follows from the rights in `tests/access/cases.py`, which is written
from `docs/reference/access.md`, and from the few lines in this file. The server's own tables are
not used.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from semel.wire.routes import ROUTES
from tests.access.cases import CASES, Case, Need, Own
from tests.access.rig import AccessServer, Line, status_of
from tests.access.world import World

NAME: Final = "mx-a"
OWNER: Final = "matrix"
STRANGER: Final = "stranger"
KINDS: Final = (
    "stream", "topic", "group", "producer", "transaction", "sink", "policy", "subscription",
)  # fmt: skip
RIGHTS: Final = ("read", "write", "create", "delete", "describe", "admin")
CLUSTER_RIGHTS: Final = ("describe", "admin", "IdempotentWrite", "TransactionalWrite")
ALLOWED: Final = "allowed"
# What needs the token of a wake. With access on, that is checked before the subscription is sought.
BY_WAKE: Final = {
    "subscription_callback": 401,
    "subscription_ack": 401,
    "subscription_release": 401,
}


class Scope(NamedTuple):
    """A scope with one right. `name` ends with `*` if it is a prefix."""

    kind: str
    name: str
    right: str

    def __str__(self) -> str:
        return ":".join(part for part in self if part)


Scopes = tuple[Scope, ...]
SINGLE: Final[list[Scopes]] = [
    *((Scope(*each),) for each in product(KINDS, (NAME, "mx-*", "zz-a", "mx-ab*"), RIGHTS)),
    *((Scope("cluster", "", right),) for right in CLUSTER_RIGHTS),
]


# ---- the rules of docs/reference/access.md -------------------------------------------------------


def may(scopes: Scopes, kind: str, name: str, right: str) -> bool:
    """Rules R2 and R3, without `--strict-rights`."""
    if Scope("cluster", "", "admin") in scopes:
        return True
    if right in ("IdempotentWrite", "TransactionalWrite"):
        writers = [each for each in scopes if each.kind in ("stream", "topic")]
        if any(each.right in ("write", "admin") for each in writers):
            return True
    return any(
        each.kind == kind
        and (each.name == name or (each.name[-1:] == "*" and name.startswith(each.name[:-1])))
        and (right in (each.right, "describe") or each.right == "admin")
        for each in scopes
    )


def is_worker(scopes: Scopes) -> bool:
    """Rule R3: who may write as a group."""
    return any(each.kind == "group" and each.right in ("write", "admin") for each in scopes)


def answer_to(need: Need | Own, scopes: Scopes, principal: str) -> tuple[Any, ...]:
    """Return the answer if only this need is checked."""
    if isinstance(need, Own):
        is_met = principal == OWNER or may(scopes, need.kind, NAME, "admin")
        is_met = is_met or (need.in_stream and may(scopes, "stream", NAME, "admin"))
        name, right = NAME, "admin"
    else:
        name = need.name.replace("{name}", NAME) or ("" if need.kind == "cluster" else NAME)
        right = need.right
        is_met = may(scopes, need.kind, name, right)
        is_met = is_met or (need.of_workers and is_worker(scopes))
    if is_met:
        return (ALLOWED,)
    if need.hides and not may(scopes, need.kind, name, "describe"):
        return (404,)
    return 403, right, need.kind, name


def expected_answers(case: Case, scopes: Scopes, principal: str) -> set[tuple[Any, ...]]:
    """Return the answers that a request can have: the rights can be checked in any order."""
    if case.route in ("token_show", "token_revoke"):  # T5: it is the owner's, and reads the stream
        if principal != OWNER and not may(scopes, "cluster", "", "admin"):
            return {(404,)}
        is_wide = case.route == "token_show" or may(scopes, "stream", NAME, "read")
        return {(ALLOWED,) if is_wide else (403, "admin", "cluster", "")}
    if case.route == "token_create":
        is_wide = may(scopes, "stream", NAME, "describe")
        return {(ALLOWED,) if is_wide else (403, "admin", "cluster", "")}
    if case.route in BY_WAKE:
        return {(BY_WAKE[case.route],)}
    answers = {answer_to(need, scopes, principal) for need in case.needs}
    refusals = answers - {(ALLOWED,)}
    if case.shows:
        is_met = (ALLOWED,) in answers if case.is_any else not refusals
        return {("shown" if is_met else "not shown",)}
    if not refusals or (case.is_any and (ALLOWED,) in answers):
        return {(ALLOWED,)}
    return refusals


# ---- what the server answers ---------------------------------------------------------------------


def answer_of(case: Case, response: bytes) -> tuple[Any, ...]:
    """Return what a response means, in the form of `answer_to`."""
    status = status_of(response)
    body = response.partition(b"\r\n\r\n")[2]
    if case.shows:
        assert status == 200, response
        text = case.shows.replace("{name}", NAME).encode()
        return ("shown" if text in body else "not shown",)
    if case.route in BY_WAKE:
        return (status,)
    if status == 409 and b"wake_stream_refused" in body:  # as if the wake stream did not exist
        return (404,)
    if status not in (403, 404):
        assert status < 300 or status in (409, 412), response
        return (ALLOWED,)
    if case.route == "stream_head":
        return (status, "describe", "stream", NAME) if status == 403 else (404,)
    problem = msgspec.json.decode(body)
    problem = problem.get("error", problem)
    if status == 404:
        return (404,)
    if problem["code"] != "forbidden":
        assert problem["code"] == "PRODUCER_FENCED", response  # the engine's, after the rights
        return (ALLOWED,)
    return 403, problem["right"], problem["kind"], problem["name"]


class Rig(NamedTuple):
    """The server of the matrix, and a token for each set of scopes and principal."""

    world: World
    line: Line
    tokens: dict[tuple[Scopes, str], str]

    def token(self, scopes: Scopes, principal: str) -> str:
        key = (scopes, principal)
        if key not in self.tokens:
            texts = [str(each) for each in scopes]
            self.tokens[key] = self.world.server.make(*texts, principal=principal)
        return self.tokens[key]

    def check(self, case: Case, cells: list[tuple[Scopes, str]]) -> None:
        """Send a request for each cell. Those that must be refused are sent together."""
        wanted = [expected_answers(case, *cell) for cell in cells]
        quiet = [
            at for at, each in enumerate(wanted) if not (case.changes and each == {(ALLOWED,)})
        ]
        call = case.call(self.world)
        requests = [(call.method, call.data(self.token(*cells[at]))) for at in quiet]
        for at, response in zip(quiet, self.line.ask_all(requests), strict=True):
            assert response is not None
            assert answer_of(case, response) in wanted[at], (case.label, cells[at], response)
        for at in sorted(set(range(len(cells))) - set(quiet)):
            call = case.call(self.world)
            (response,) = self.line.ask_all([(call.method, call.data(self.token(*cells[at])))])
            assert response is not None
            assert answer_of(case, response) == (ALLOWED,), (case.label, cells[at], response)
            self.world.build()


@pytest.fixture(scope="module")
def rig(server: AccessServer) -> Iterator[Rig]:
    with server.line() as line:
        yield Rig(World(server, NAME, OWNER), line, {})


# ---- tests ---------------------------------------------------------------------------------------


def sets_of(case: Case) -> list[Scopes]:
    """Return the scopes that meet all needs of a case, and those without one of them."""
    whole: list[Scope] = []
    for need in case.needs:
        right = "admin" if isinstance(need, Own) else need.right
        name = "" if need.kind == "cluster" else NAME
        if isinstance(need, Need) and need.name:
            name = need.name.replace("{name}", NAME)
        whole.append(Scope(need.kind, name, right))
    whole = list(dict.fromkeys(whole))
    fewer = [tuple(each for each in whole if each != left) for left in whole]
    return [scopes for scopes in (tuple(whole), *fewer) if len(scopes) > 1]


def cells_of(case: Case) -> list[tuple[Scopes, str]]:
    return list(product([*SINGLE, *sets_of(case)], (OWNER, STRANGER)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_every_scope_allows_what_the_page_says(rig: Rig, case: Case) -> None:
    rig.world.build()
    rig.check(case, cells_of(case))


def test_every_route_is_in_the_matrix_and_the_matrix_is_large() -> None:
    assert {case.route for case in CASES} == {route.name for route in ROUTES}
    cells = [(case, *cell) for case in CASES for cell in cells_of(case)]
    allowed = [
        each
        for each in cells
        if expected_answers(each[0], each[1], each[2]) in ({(ALLOWED,)}, {("shown",)})
    ]
    print(
        f"{len(ROUTES)} routes in {len(CASES)} requests x {len(SINGLE)} scopes and"
        f" {sum(len(sets_of(case)) for case in CASES)} sets of scopes x 2 principals:"
        f" {len(cells)} cells, {len(allowed)} allowed"
    )
    assert len(cells) >= 20_000
    assert len(allowed) >= 500
