"""Writers that use our producers, on threads and on an event loop."""

import asyncio
from functools import partial
from random import Random

from semel import AsyncClient, Client
from semel.client.errors import ClientError, Indeterminate, Unavailable
from semel.client.producer.async_producer import AsyncProducer
from semel.client.producer.sync_producer import Producer
from tests.faults.lives import HASTE_SECONDS, MODES, Life, Writer
from tests.faults.notes import Notes, Work


def produce(notes: Notes, random: Random, *, mode: str) -> None:
    """Append from a thread until it is over."""
    writer = Writer(notes, random, f"sync-{mode}", "producer", mode)
    ghosts: list[Producer] = []
    with Client(notes.url) as patient, Client(notes.url, timeout=HASTE_SECONDS) as hasty:
        while not notes.over.is_set():
            life = writer.next_life()
            stream = (hasty if life.is_hasty else patient).stream(notes.path)
            try:
                producer = stream.producer(writer.name, **life.options)
            except (Unavailable, Indeterminate):
                continue
            _live(writer, life, producer)
            _lay(notes, ghosts)
            if life.is_ghost:
                ghosts.append(producer)
            else:
                producer.close(life.close_timeout)
                notes.close_life(producer.stats)
        _lay(notes, ghosts)


def _lay(notes: Notes, ghosts: list[Producer]) -> None:
    while ghosts:
        ghost = ghosts.pop()
        notes.count("producers fenced", ghost.stats.messages_failed > 0)
        ghost.close()
        notes.close_life(ghost.stats)


def _live(writer: Writer, life: Life, producer: Producer) -> None:
    life.producer = producer
    for operation in writer.operations(producer.last_seq, life.length):
        options = life.begin(operation)
        try:
            producer.append(writer.notes.encoded(operation), **options)
        except ClientError:
            life.was_refused()
            return


async def _produce(notes: Notes, random: Random, mode: str) -> None:
    writer = Writer(notes, random, f"async-{mode}", "async producer", mode)
    ghosts: list[AsyncProducer] = []
    async with (
        AsyncClient(notes.url) as patient,
        AsyncClient(notes.url, timeout=HASTE_SECONDS) as hasty,
    ):
        while not notes.over.is_set():
            life = writer.next_life()
            stream = (hasty if life.is_hasty else patient).stream(notes.path)
            producer = stream.producer(writer.name, **life.options)
            try:
                await producer.open()
            except (Unavailable, Indeterminate):
                continue
            await _live_on_a_loop(writer, life, producer)
            await _lay_on_a_loop(notes, ghosts)
            if life.is_ghost:
                ghosts.append(producer)
            else:
                await producer.close(life.close_timeout)
                notes.close_life(producer.stats)
        await _lay_on_a_loop(notes, ghosts)


async def _lay_on_a_loop(notes: Notes, ghosts: list[AsyncProducer]) -> None:
    while ghosts:
        ghost = ghosts.pop()
        notes.count("producers fenced", ghost.stats.messages_failed > 0)
        await ghost.close()
        notes.close_life(ghost.stats)


async def _live_on_a_loop(writer: Writer, life: Life, producer: AsyncProducer) -> None:
    life.producer = producer
    for operation in writer.operations(producer.last_seq, life.length):
        options = life.begin(operation)
        try:
            await producer.append(writer.notes.encoded(operation), **options)
        except ClientError:
            life.was_refused()
            return
        await asyncio.sleep(0)


def produce_on_a_loop(notes: Notes, random: Random) -> None:
    """Append with a producer of every mode at once until it is over."""

    async def all_modes() -> None:
        async with asyncio.TaskGroup() as group:
            for mode in MODES:
                group.create_task(_produce(notes, Random(random.random()), mode))

    asyncio.run(all_modes())


def work() -> list[Work]:
    """All writers of this kind for one stream."""
    return [*(partial(produce, mode=mode) for mode in MODES), produce_on_a_loop]
