"""Writers that use the client's producers, on threads and on an event loop."""

import asyncio
from functools import partial
from random import Random

from semel import AsyncClient, Client
from semel.client.errors import ClientError, DamagedResponse, Indeterminate, Unavailable
from semel.client.producer.async_producer import AsyncProducer
from semel.client.producer.sync_producer import Producer
from tests.faults.lives import HASTE_SECONDS, MODES, Instance, Writer
from tests.faults.notes import Notes, Work


def produce(notes: Notes, random: Random, *, mode: str) -> None:
    """Append with instances of a sync producer until the run is over."""
    writer = Writer(notes, random, f"sync-{mode}", "producer", mode)
    ghosts: list[Producer] = []
    with Client(notes.url) as patient, Client(notes.url, timeout=HASTE_SECONDS) as hasty:
        while not notes.over.is_set():
            instance = writer.next_instance()
            stream = (hasty if instance.is_hasty else patient).stream(notes.path)
            try:
                producer = stream.producer(writer.name, **instance.options)
            except (Unavailable, Indeterminate, DamagedResponse):
                continue
            _append_all(writer, instance, producer)
            _close_ghosts(notes, ghosts)
            if instance.is_ghost:
                ghosts.append(producer)
            else:
                producer.close(instance.close_timeout)
                notes.count_instance(producer.stats)
        _close_ghosts(notes, ghosts)


def _close_ghosts(notes: Notes, ghosts: list[Producer]) -> None:
    while ghosts:
        ghost = ghosts.pop()
        notes.count("producers fenced", ghost.stats.messages_failed > 0)
        ghost.close()
        notes.count_instance(ghost.stats)


def _last_seq(writer: Writer, producer: Producer | AsyncProducer) -> int | None:
    """Return the last stored sequence of a sparse producer.

    A dense one is not asked: it begins with its first batch, without a request before.
    """
    return producer.last_seq if writer.mode == "sparse" else None


def _append_all(writer: Writer, instance: Instance, producer: Producer) -> None:
    instance.producer = producer
    for operation in writer.operations(_last_seq(writer, producer), instance.length):
        options = instance.begin(operation)
        try:
            producer.append(writer.notes.encoded(operation), **options)
        except ClientError:
            instance.was_refused()
            return


async def _produce(notes: Notes, random: Random, mode: str) -> None:
    writer = Writer(notes, random, f"async-{mode}", "async producer", mode)
    ghosts: list[AsyncProducer] = []
    async with (
        AsyncClient(notes.url) as patient,
        AsyncClient(notes.url, timeout=HASTE_SECONDS) as hasty,
    ):
        while not notes.over.is_set():
            instance = writer.next_instance()
            stream = (hasty if instance.is_hasty else patient).stream(notes.path)
            producer = stream.producer(writer.name, **instance.options)
            try:
                if mode == "sparse":
                    await producer.open()
            except (Unavailable, Indeterminate, DamagedResponse):
                continue
            await _append_on_a_loop(writer, instance, producer)
            await _close_ghosts_on_a_loop(notes, ghosts)
            if instance.is_ghost:
                ghosts.append(producer)
            else:
                await producer.close(instance.close_timeout)
                notes.count_instance(producer.stats)
        await _close_ghosts_on_a_loop(notes, ghosts)


async def _close_ghosts_on_a_loop(notes: Notes, ghosts: list[AsyncProducer]) -> None:
    while ghosts:
        ghost = ghosts.pop()
        notes.count("producers fenced", ghost.stats.messages_failed > 0)
        await ghost.close()
        notes.count_instance(ghost.stats)


async def _append_on_a_loop(writer: Writer, instance: Instance, producer: AsyncProducer) -> None:
    instance.producer = producer
    for operation in writer.operations(_last_seq(writer, producer), instance.length):
        options = instance.begin(operation)
        try:
            await producer.append(writer.notes.encoded(operation), **options)
        except ClientError:
            instance.was_refused()
            return
        await asyncio.sleep(0)


def produce_on_a_loop(notes: Notes, random: Random) -> None:
    """Append with async producers of all modes at once until the run is over."""

    async def all_modes() -> None:
        async with asyncio.TaskGroup() as group:
            for mode in MODES:
                group.create_task(_produce(notes, Random(random.random()), mode))

    asyncio.run(all_modes())


def work() -> list[Work]:
    """Return all writers of this kind for one stream."""
    return [*(partial(produce, mode=mode) for mode in MODES), produce_on_a_loop]
