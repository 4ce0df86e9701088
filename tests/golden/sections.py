"""The sections of the golden files: the server and the script of each section."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from tests.golden import (
    malformed,
    other_servers,
    plain,
    protocol,
    protocol_subscriptions,
    protocol_topics,
    refusals,
    refusals_http,
    refusals_topics,
    refusals_transactions,
)
from tests.golden.golden_files import Golden
from tests.golden.recorder import Proxy, Recording, Sender
from tests.golden.replay import errors_of, refusals_in
from tests.golden.scenario import STEPS
from tests.golden.scenario_run import SYNC, ScenarioRun
from tests.golden.servers import Server, serving

# The section of the public client; all other sections are plain HTTP.
CLIENT: Final = "client"
# The section of the results with the errors that the client raises for recorded refusals.
ERRORS: Final = "errors"
Run = Callable[[Sender, Server], None]


class Plan(NamedTuple):
    """A server and the sections that are recorded on it, in order."""

    sections: dict[str, Run]
    options: tuple[str, ...] = ()
    files_max: int | None = None
    is_slow: bool = False


_REFUSALS: Final = (
    *refusals.script,
    *refusals_http.script,
    *refusals_transactions.script,
    *refusals_topics.script,
)
_PROTOCOL: Final = (*protocol.script, *protocol_topics.script)
PLANS: Final = (
    Plan(
        {"timeouts": other_servers.provoke_timeouts},
        other_servers.SHORT_TIMES,
        is_slow=True,
    ),
    Plan({"protocol": lambda ask, _: plain.run(_PROTOCOL, ask)}),
    Plan(
        {
            "refusals": lambda ask, _: plain.run(_REFUSALS, ask),
            "malformed": lambda ask, _: malformed.send_all(ask),
        }
    ),
    Plan({"subscriptions": lambda ask, _: plain.run(protocol_subscriptions.script, ask)}),
    Plan({"small_segments": other_servers.provoke_small_segments}, other_servers.SMALL_SEGMENTS),
    Plan({"browsers": other_servers.serve_pages}, other_servers.WITH_CORS),
    Plan({"access": other_servers.ask_without_token}, other_servers.WITH_ACCESS),
    Plan(
        {"connection_limit": other_servers.provoke_connection_limit},
        files_max=other_servers.FILES_MAX,
    ),
)


def record(folder: Path) -> Golden:
    """Record the protocol of the current client and server; the folder holds the data."""
    with ThreadPoolExecutor() as pool:
        plain_sections = pool.submit(record_plain, folder)
        sections = {CLIENT: record_client(folder), **plain_sections.result()}
    responses = {name: recording.responses for name, recording in sections.items()}
    refused = refusals_in([entry for entries in responses.values() for entry in entries])
    return Golden(
        {name: recording.requests for name, recording in sections.items()},
        responses,
        {CLIENT: sections[CLIENT].results, ERRORS: errors_of(refused)},
    )


def record_client(folder: Path, kind: str = SYNC) -> Recording:
    """Run the scenario with a client of this kind and a new server."""
    recording = Recording()
    with (
        serving(folder / kind) as server,
        Proxy(server.port, recording) as proxy,
        ScenarioRun(kind, proxy.url, recording) as run,
    ):
        run.run_steps(STEPS)
    return recording


def record_plain(folder: Path) -> dict[str, Recording]:
    """Record all sections of plain HTTP; slow sections run while the others are recorded."""
    found: dict[str, Recording] = {}
    failures: list[BaseException] = []
    with ExitStack() as stack:
        started = [
            (
                plan,
                stack.enter_context(
                    serving(
                        folder / next(iter(plan.sections)),
                        *plan.options,
                        files_max=plan.files_max,
                    )
                ),
            )
            for plan in PLANS
        ]

        def run(plan: Plan, server: Server) -> None:
            for name, send in plan.sections.items():
                found[name] = Recording()
                try:
                    send(Sender(server.port, found[name]), server)
                except BaseException as error:
                    failures.append(error)
                    raise

        slow = [
            threading.Thread(target=run, args=(plan, server))
            for plan, server in started
            if plan.is_slow
        ]
        for thread in slow:
            thread.start()
        for plan, server in started:
            if not plan.is_slow:
                run(plan, server)
        for thread in slow:
            thread.join()
    if failures:
        raise failures[0]
    return {name: found[name] for plan in PLANS for name in plan.sections}
