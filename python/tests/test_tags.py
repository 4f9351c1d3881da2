"""The names of what is allocated."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncGenerator
from typing import Any

import bursar
import pytest

pytestmark = pytest.mark.usefixtures("devices")


def counted() -> dict[str, int]:
    return {name: counts.blocks for name, counts in bursar.statistics()[0].tags.items() if counts.blocks}


def test_tags_nest_and_are_of_their_thread() -> None:
    kept: list[bursar.Buffer] = []
    with bursar.tag("outer"):
        kept.append(bursar.Buffer(256))
        with bursar.tag("inner"):
            kept.append(bursar.Buffer(512))
            thread = threading.Thread(target=lambda: kept.append(bursar.Buffer(1024)))
            thread.start()
            thread.join()
        kept.append(bursar.Buffer(2048))
    kept.append(bursar.Buffer(4096))
    tags = bursar.statistics()[0].tags
    counted = {name: counts.live for name, counts in tags.items() if counts.live}
    assert counted == {"outer": 256 + 2048, "inner": 512, "untagged": 1024 + 4096}


@pytest.mark.parametrize("seed", range(8))
def test_each_task_names_its_own_whatever_the_order_in_which_blocks_end(seed: int) -> None:
    numbers = random.Random(seed)
    kept: list[bursar.Buffer] = []
    expected: dict[str, int] = {}

    async def allocate(name: str) -> None:
        kept.append(bursar.Buffer(256))
        expected[name] = expected.get(name, 0) + 1

    async def task(name: str) -> None:
        await allocate("around")
        with bursar.tag(name):
            for _ in range(numbers.randrange(1, 5)):
                await allocate(name)
                await asyncio.sleep(0)
            with bursar.tag(name + "-inner"):
                for _ in range(numbers.randrange(1, 5)):
                    await asyncio.sleep(0)
                    await allocate(name + "-inner")
            await asyncio.sleep(0)
            await allocate(name)
        await allocate("around")

    async def all_tasks() -> None:
        with bursar.tag("around"):
            await asyncio.gather(*(task(f"task-{number}") for number in range(5)))
            await allocate("around")

    asyncio.run(all_tasks())
    kept.append(bursar.Buffer(256))
    assert counted() == {**expected, "untagged": 1}, f"seed {seed}"


def test_nothing_is_left_of_a_block_that_ends_in_another_context() -> None:
    async def named() -> AsyncGenerator[bursar.Buffer, None]:
        with bursar.tag("generated"):
            yield bursar.Buffer(256)

    async def main() -> list[bursar.Buffer]:
        generator = named()

        async def first() -> bursar.Buffer:
            return await generator.__anext__()

        kept = [await asyncio.create_task(first())]
        await generator.aclose()
        return [*kept, bursar.Buffer(256)]

    kept = asyncio.run(main())
    kept.append(bursar.Buffer(256))
    assert counted() == {"generated": 1, "untagged": 2}


@pytest.mark.parametrize("wrong", [None, 5, b"bytes"])
def test_a_tag_is_text(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a tag is text"):
        with bursar.tag(wrong):
            pass


def test_a_name_that_is_refused_names_nothing() -> None:
    with pytest.raises(UnicodeEncodeError), bursar.tag("\ud800"):
        pass
    with bursar.tag("fine"):
        kept = [bursar.Buffer(4096)]
    kept.append(bursar.Buffer(4096))
    assert counted()["fine"] == 1
    kept.clear()
