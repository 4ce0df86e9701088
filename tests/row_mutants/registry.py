"""The bugs of each row. The test that the row names in docs/reference/seeds.md must find them."""

from collections.abc import Callable
from typing import Final

import pytest

from semel.journal.writer import JournalWriter
from tests.row_mutants import clients, server

Mutant = Callable[[pytest.MonkeyPatch], None]

MUTANTS: Final[dict[str, tuple[Mutant, ...]]] = {
    "D03": (server.sequences_count_messages,),
    "D23": (clients.every_second_callback_is_left_out, clients.what_is_sent_is_not_pending),
    "D27": (clients.unnamed_producers_share_a_name,),
    "D31": (server.if_match_may_be_older,),
    "D35": (clients.one_batch_is_in_flight,),
    "P17": (server.a_position_keeps_no_properties,),
    "U12": (server.older_epochs_are_kept,),
    "U13": (server.equal_appends_are_stored_once,),
    "R04": (server.a_retry_gets_the_last_offset,),
    "R07": (
        server.keys_select_no_partition,
        server.a_chosen_partition_is_ignored,
        server.a_repeat_gets_the_ends_of_the_partitions,
        server.leader_epochs_are_not_compared,
    ),
    "R13": (server.a_commit_stores_what_it_can,),
    "R14": (server.transactions_have_ten_minutes,),
    "R24": (server.answers_come_before_the_sync, server.checksums_are_not_compared),
    "R26": (server.a_torn_tail_stays_in_the_file,),
    "R37": (server.the_cluster_has_no_rights, server.everybody_may_publish),
    "C04": (clients.messages_are_taken_in_reverse,),
    "C10": (clients.a_step_without_output_moves_nothing,),
    "C15": (clients.fatal_errors_are_errors_of_a_message,),
    "C19": (clients.default_options_are_not_merged,),
    "C20": (clients.opts_are_passed_as_text,),
    "C21": (clients.graphs_are_not_checked,),
    "C26": (clients.each_leg_is_delivered_for_itself,),
    "C28": (clients.a_join_needs_every_message_to_match,),
    "C32": (
        clients.the_topology_has_no_edges,
        clients.bindings_of_a_join_are_exchanged,
        clients.a_merge_replaces_processors,
    ),
    "K09": (server.a_sink_belongs_to_everyone,),
    "K13": (server.what_is_not_prepared_is_committed,),
    "K14": (server.versions_have_no_gaps,),
    "K17": (clients.rows_that_are_too_large_are_left_out,),
    "K18": (server.idle_sinks_are_forgotten,),
}


def no_bug(patch: pytest.MonkeyPatch) -> None:
    """Change nothing: no test may find it."""


def a_server_that_does_not_start(patch: pytest.MonkeyPatch) -> None:
    """Break the server so much that no test can say what is wrong: this does not count as found."""
    patch.delattr(JournalWriter, "prepare")


CONTROLS: Final = (no_bug, a_server_that_does_not_start)


def name_of(mutant: Mutant) -> str:
    return mutant.__name__


def apply_mutant(name: str) -> None:
    """Apply the bug with this name to this process. Raises KeyError if there is none."""
    mutants = [*CONTROLS, *(mutant for each in MUTANTS.values() for mutant in each)]
    {name_of(mutant): mutant for mutant in mutants}[name](pytest.MonkeyPatch())
