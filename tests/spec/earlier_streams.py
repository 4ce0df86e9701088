"""Streams with media types that earlier versions accepted, and that are refused now."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from semel.broker.engine import Engine
from semel.broker.settings import Settings
from semel.model.commands import Batch, Create
from semel.model.outcomes import Created


def create_streams(data: Path, streams: Mapping[str, tuple[str, bytes]]) -> None:
    """Create streams in a new data directory. `streams` maps paths to media types and contents.

    The engine accepts any type, as it must when it replays a journal of an earlier version.
    """
    with ThreadPoolExecutor(1) as pool:  # this thread may have an event loop that is running
        pool.submit(asyncio.run, _create(data, streams)).result()


async def _create(data: Path, streams: Mapping[str, tuple[str, bytes]]) -> None:
    engine = await Engine.open(str(data), Settings(reserve_bytes=0))
    try:
        for path, (media_type, content) in streams.items():
            now_ms = engine.clock.now_ms()
            create = Create(path, now_ms, f"i-{path}", media_type, batch=Batch(content))
            assert isinstance(await engine.execute(create), Created)
    finally:
        await engine.close()
