"""The HTTP protocol is the same as when the golden files were written.

To change it on purpose, run `python -m tests.golden --write` and review the diff. Each comparison
is also tested with altered data, to show that it finds differences.
"""

import copy
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.golden import codes, golden_files
from tests.golden.codes import NOT_PROVOKED, codes_in, documented_codes
from tests.golden.exchanges import Entry, Response
from tests.golden.golden_files import Golden, differences
from tests.golden.placeholders import Placeholders
from tests.golden.replay import (
    errors_of,
    refusals_in,
    replay,
    resend,
    with_unknown_field,
    with_unknown_fields,
    without_first_field,
)
from tests.golden.scenario import STEPS
from tests.golden.scenario_run import ASYNC, SYNC, UNKNOWN_FIELD
from tests.golden.sections import CLIENT, ERRORS, record, record_client
from tests.golden.servers import serving

KINDS: Final = (SYNC, ASYNC)
FILES: Final = Golden._fields

# Every call of docs/reference/http.md except GET /metrics.
CALLS: Final = (
    ("PUT", "/v1/stream/[^?]+"),
    ("POST", "/v1/stream/[^?]+"),
    ("GET", r"/v1/stream/[^?]+\?offset=.*"),
    ("GET", r"/v1/stream/.*live=long-poll.*"),
    ("GET", r"/v1/stream/.*live=sse.*"),
    ("HEAD", "/v1/stream/.*"),
    ("DELETE", "/v1/stream/[^?]+"),
    ("DELETE", r"/v1/stream/.*\?before=.*"),
    ("PATCH", "/v1/stream/.*"),
    ("OPTIONS", ".*"),
    ("GET", r"/v1/streams\?.*prefix=.*"),
    *[(method, "/v1/topics/[^?]+") for method in ("PUT", "POST", "GET", "HEAD", "PATCH", "DELETE")],
    ("GET", r"/v1/topics\?.*"),
    ("POST", "/v1/producers"),
    ("POST", "/v1/stream/.*/producer"),
    ("POST", "/v1/producers/claim"),
    ("GET", r"/v1/producers\?.*"),
    ("GET", r"/v1/producers/explain\?.*"),
    ("DELETE", r"/v1/producers\?.*"),
    ("POST", "/v1/transactions"),
    *[
        ("POST", f"/v1/transactions/[^/]+/{action}")
        for action in ("streams", "offsets", "prepare", "commit", "abort", "fence")
    ],
    ("GET", r"/v1/transactions\?.*"),
    ("GET", r"/v1/transactions/[^/]+"),
    ("POST", "/v1/commits"),
    ("GET", r"/v1/groups\?.*"),
    ("GET", "/v1/groups/[^/]+"),
    ("DELETE", "/v1/groups/[^/]+"),
    ("POST", "/v1/groups/[^/]+/members"),
    ("POST", "/v1/groups/[^/]+/members/[^/]+"),
    ("DELETE", "/v1/groups/[^/]+/members/[^/]+"),
    ("GET", "/v1/groups/[^/]+/offsets.*"),
    ("POST", "/v1/groups/[^/]+/offsets"),
    ("GET", "/v1/groups/[^/]+/snapshot"),
    ("POST", "/v1/groups/[^/]+/snapshot"),
    ("GET", "/v1/sinks"),
    ("GET", "/v1/sinks/[^/]+"),
    ("DELETE", "/v1/sinks/[^/]+"),
    ("POST", "/v1/sinks/[^/]+/rebind"),
    ("GET", "/v1/tokens"),
    ("POST", "/v1/tokens"),
    ("GET", "/v1/tokens/[^/]+"),
    ("DELETE", "/v1/tokens/[^/]+"),
    ("POST", "/v1/owners"),
    ("GET", "/v1/whoami"),
    ("GET", "/health"),
    ("PUT", "/v1/stream/__ds/subscriptions/[^/]+"),
    ("GET", "/v1/stream/__ds/subscriptions/[^/]+"),
    ("DELETE", "/v1/stream/__ds/subscriptions/[^/]+"),
    ("GET", r"/v1/stream/__ds/subscriptions\?.*"),
    ("POST", "/v1/stream/__ds/subscriptions/[^/]+/streams"),
    ("DELETE", "/v1/stream/__ds/subscriptions/[^/]+/streams/.+"),
    *[
        ("POST", f"/v1/stream/__ds/subscriptions/[^/]+/{action}")
        for action in ("callback", "claim", "ack", "release", "resume")
    ],
    ("GET", r"/v1/stream/__ds/jwks\.json"),
)


@pytest.fixture(scope="module")
def golden() -> Golden:
    return golden_files.load()


def all_of(sections: dict[str, Sequence[Entry]]) -> Iterator[Entry]:
    for entries in sections.values():
        yield from entries


# ---- the present client and the present server ---------------------------------------------------


def test_client_and_server_do_what_is_recorded(golden: Golden, tmp_path: Path) -> None:
    now = record(tmp_path)
    for file in FILES:
        recorded, live = getattr(golden, file), getattr(now, file)
        assert list(recorded) == list(live)
        for section in recorded:
            assert not differences(recorded[section], live[section]), f"{file}.json, {section}"


def test_the_client_for_asyncio_does_the_same(golden: Golden, tmp_path: Path) -> None:
    now = record_client(tmp_path, ASYNC)
    assert not differences(golden.requests[CLIENT], now.requests)
    assert not differences(golden.responses[CLIENT], now.responses)
    assert not differences(golden.results[CLIENT], now.results)


@pytest.mark.parametrize("file", FILES)
def test_one_altered_byte_is_noticed(golden: Golden, file: str) -> None:
    for section, entries in getattr(golden, file).items():
        assert not differences(entries, copy.deepcopy(entries)), section
        found = differences(altered(entries, len(entries) // 2), entries)
        assert re.search(r"^-.*~", found, re.MULTILINE), section


def altered(entries: Sequence[Entry], at: int) -> list[Entry]:
    """Change one byte of the last field of an entry."""
    changed = copy.deepcopy(list(entries))
    changed[at] = _altered(changed[at])
    return changed


def _altered(value: Any) -> Any:
    if value and isinstance(value, list):
        return [*value[:-1], _altered(value[-1])]
    if value and isinstance(value, dict):
        last = list(value)[-1]
        return {**value, last: _altered(value[last])}
    return f"{str(value)[:-1]}~"


# ---- an old client and the present server --------------------------------------------------------


def test_recorded_requests_get_the_recorded_responses(golden: Golden, tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        now = resend(golden.requests[CLIENT], server.port)
    assert not differences(golden.requests[CLIENT], now.requests)
    assert not differences(golden.responses[CLIENT], now.responses)


def test_another_request_gets_another_response(golden: Golden, tmp_path: Path) -> None:
    requests, responses = golden.requests[CLIENT][:8], golden.responses[CLIENT][:8]
    changed = copy.deepcopy(list(requests))
    assert changed[1]["request"] == "PUT /v1/stream/orders"
    changed[1]["request"] = "PUT /v1/stream/orderz"
    with serving(tmp_path / "data") as server:
        now = resend(changed, server.port)
    assert "orderz" in differences(responses, now.responses)
    assert not differences(responses[2:], now.responses[2:])
    assert differences(altered(responses[2:], 3), now.responses[2:])


# ---- the present client and an old server --------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_responses_give_the_recorded_results(golden: Golden, kind: str) -> None:
    # All calls of the scenario can be replayed. Two of them read lists in pages, and no list of the
    # scenario has more than the 1,000 entries of one page.
    now = replay(kind, golden.requests[CLIENT], golden.responses[CLIENT])
    assert not differences(golden.requests[CLIENT], now.requests)
    assert not differences(golden.results[CLIENT], now.results)


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_refusals_give_the_recorded_errors(golden: Golden, kind: str) -> None:
    now = errors_of(refusals_in(list(all_of(dict(golden.responses)))), kind)
    assert not differences(golden.results[ERRORS], now)


def test_another_response_gives_another_result(golden: Golden) -> None:
    steps = STEPS[:10]
    names = {step.__name__.replace("_", " ") for step in steps}
    requests, responses, results = (
        [entry for entry in sections[CLIENT] if entry["step"] in names] for sections in golden
    )
    assert not differences(results, replay(SYNC, requests, responses, steps=steps).results)
    changed = copy.deepcopy(responses)
    assert '"status"' in changed[0]["body"]
    changed[0]["body"] = changed[0]["body"].replace('"status"', '"statuz"')
    now = replay(SYNC, requests, changed, steps=steps)
    assert "statuz" in differences(results, now.results)
    assert differences(altered(requests, 3), now.requests)


def test_another_refusal_gives_another_error(golden: Golden) -> None:
    refusals = copy.deepcopy(refusals_in(golden.responses[CLIENT])[:1])
    before = errors_of(refusals)
    refusals[0]["body"] = refusals[0]["body"].replace('{"code":"', '{"code":"x')
    assert "Refused" in differences(before, errors_of(refusals))


# ---- the present client and a later server -------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_server_may_add_fields(golden: Golden, kind: str) -> None:
    added = 0

    def changed(response: Response) -> Response:
        nonlocal added
        found = with_unknown_fields(response)
        added += found.body.count(UNKNOWN_FIELD.encode())
        return found

    now = replay(kind, golden.requests[CLIENT], golden.responses[CLIENT], changed)
    assert added > len(STEPS)
    assert not differences(golden.requests[CLIENT], now.requests)
    assert not differences(golden.results[CLIENT], now.results)


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_server_may_add_facts_to_refusals(golden: Golden, kind: str) -> None:
    refusals = refusals_in(list(all_of(dict(golden.responses))))
    now = errors_of(refusals, kind, with_unknown_fields)
    assert not differences(golden.results[ERRORS], now)


def test_a_server_that_leaves_fields_out_is_noticed(golden: Golden) -> None:
    steps = [step for step in STEPS if step.__name__ in ("ask_for_health", "register_producers")]
    names = {step.__name__.replace("_", " ") for step in steps}
    requests, responses, results = (
        [entry for entry in sections[CLIENT] if entry["step"] in names] for sections in golden
    )
    now = replay(SYNC, requests, responses, without_first_field, steps)
    assert "ProtocolError" in differences(results, now.results)


def test_fields_are_added_to_objects_and_not_to_maps_of_streams() -> None:
    given = {"offsets": {"g": {"s": "0"}}, "streams": {"s": {"messages": 1}}, "sinks": [{}]}
    assert with_unknown_field({"streams": [{"path": "s"}]})["streams"][0].keys() >= {UNKNOWN_FIELD}
    later = {"of": ["a later server", 1]}
    assert with_unknown_field(given) == {
        "offsets": {"g": {"s": "0"}},
        "streams": {"s": {"messages": 1, UNKNOWN_FIELD: later}},
        "sinks": [{UNKNOWN_FIELD: later}],
        UNKNOWN_FIELD: later,
    }


# ---- what is covered -----------------------------------------------------------------------------


def test_every_code_is_provoked_or_has_a_reason(golden: Golden) -> None:
    documented = documented_codes(codes.PAGE.read_text(encoding="utf-8"))
    provoked = codes_in(golden.responses)
    assert provoked <= documented
    assert documented - provoked == set(NOT_PROVOKED)


def test_a_code_that_is_not_provoked_is_noticed() -> None:
    page = "| status | code | meaning |\n|---|---|---|\n| 400 | `one`, `two` | `three` |\n"
    assert documented_codes(page) == {"one", "two"}
    assert documented_codes("| exit code |\n|---|\n| `one` |\n") == set()


@pytest.mark.parametrize(("method", "target"), CALLS)
def test_every_call_is_recorded(golden: Golden, method: str, target: str) -> None:
    wanted = re.compile(f"{method} {target}")
    asked = [entry.get("request", "") for entry in all_of(dict(golden.requests))]
    assert any(wanted.fullmatch(request) for request in asked)


def test_equal_values_have_equal_placeholders() -> None:
    names = Placeholders()
    one, two = "0123456789abcdef", "fedcba9876543210"
    names.learn_incarnations(f"Stream-Incarnation: {one}\nStream-Incarnation: {two}")
    assert (
        names.normalise(f"{two} {one} {two}") == "<incarnation-1> <incarnation-2> <incarnation-1>"
    )
    assert names.normalise("1111222233334444") == "1111222233334444"
    assert names.fill("<incarnation-2>") == one
    assert names.normalise(names.fill("<time-7> <id-3>")) == "<time-7> <id-3>"
    assert names.normalise("2001-02-03T04:05:06.789Z") == "2001-02-03T04:05:06.789Z"
