"""The names of what is allocated."""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
import signal
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Any

import bursar
import pytest
from bursar import _native

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


@pytest.mark.parametrize("seed", range(8))
def test_blocks_end_in_any_order_and_on_any_thread(seed: int) -> None:
    """Of a thread's blocks the last that was entered and has not ended counts, for buffers and for what libraries ask for."""
    numbers = random.Random(seed)

    def named(name: str) -> Generator[None, None, None]:
        with bursar.tag(name):
            yield

    def names() -> list[str]:
        """Returns the names that a buffer and memory of a library have."""
        before = counted()
        buffer = bursar.Buffer(256)
        of_buffer = counted()
        address = _native.allocate_anywhere(256, 0)
        of_library = counted()
        _native.free_anywhere(address, 0)
        del buffer
        return [
            name
            for earlier, later in ((before, of_buffer), (of_buffer, of_library))
            for name in later
            if later[name] != earlier.get(name, 0)
        ]

    bursar.Buffer(256)
    open_blocks: list[tuple[str, Generator[None, None, None]]] = []
    for number in range(60):
        if not open_blocks or numbers.randrange(2):
            name = f"{seed}-{number}"
            block = named(name)
            next(block)
            open_blocks.append((name, block))
        else:
            _, block = open_blocks.pop(numbers.randrange(len(open_blocks)))
            if numbers.randrange(3):
                block.close()
            else:
                found: list[list[str]] = []

                def elsewhere(block: Generator[None, None, None] = block) -> None:
                    with bursar.tag("elsewhere"):
                        block.close()
                        found.append(names())

                thread = threading.Thread(target=elsewhere)
                thread.start()
                thread.join()
                assert found == [["elsewhere"] * 2], f"seed {seed}, step {number}: it ended another thread's block"
        expected = open_blocks[-1][0] if open_blocks else "untagged"
        assert names() == [expected] * 2, f"seed {seed}, step {number}"
    while open_blocks:
        open_blocks.pop(numbers.randrange(len(open_blocks)))[1].close()
    assert names() == ["untagged"] * 2, f"seed {seed}"


def test_a_block_that_has_begun_is_not_begun_again_and_a_function_can_be_one() -> None:
    block = bursar.tag("once")
    with block:
        with pytest.raises(RuntimeError, match="the block has begun already"), block:
            pass
        kept = [bursar.Buffer(256)]
    with block:
        kept.append(bursar.Buffer(256))

    @bursar.tag("function")
    def allocate(depth: int) -> None:
        kept.append(bursar.Buffer(256))
        if depth:
            allocate(depth - 1)

    allocate(2)
    kept.append(bursar.Buffer(256))
    assert counted() == {"once": 2, "function": 3, "untagged": 1}


def test_a_block_of_a_coroutine_lasts_as_long_as_it_runs() -> None:
    kept = []

    @bursar.tag("coroutine")
    async def allocate(number: int, *, again: bool) -> int:
        """Allocates."""
        kept.append(bursar.Buffer(256))
        await asyncio.sleep(0)
        kept.append(bursar.Buffer(256))
        if again:
            await allocate(number, again=False)
        return number

    class Loader:
        @bursar.tag("method")
        async def __call__(self) -> None:
            kept.append(bursar.Buffer(256))

        @bursar.tag("static")
        @staticmethod
        async def load() -> None:
            kept.append(bursar.Buffer(256))

    async def both() -> list[int]:
        await bursar.tag("object")(Loader())()
        await Loader.load()
        return list(await asyncio.gather(allocate(1, again=True), allocate(2, again=False)))

    assert inspect.iscoroutinefunction(allocate)
    assert (allocate.__name__, allocate.__doc__) == ("allocate", "Allocates.")
    assert asyncio.run(both()) == [1, 2]
    kept.append(bursar.Buffer(256))
    assert counted() == {"method": 1, "static": 1, "coroutine": 6, "untagged": 1}


def test_a_block_of_a_generator_is_refused() -> None:
    def produce() -> Iterator[int]:
        yield 1

    async def produce_async() -> AsyncIterator[int]:
        yield 1

    class Producer:
        def __call__(self) -> Iterator[int]:
            yield 1

    functions: list[Callable[..., object]] = [produce, produce_async, Producer(), Producer().__call__, functools.partial(produce)]
    for block, name in ((bursar.tag("x"), r"bursar\.tag\('x'\)"), (bursar.awake(), r"bursar\.awake\(\)")):
        for function in functions:
            with pytest.raises(TypeError, match=f"is a generator, whose body runs after the call: use `with {name}:` inside"):
                block(function)


def test_what_is_no_function_is_not_decorated() -> None:
    wrong: Any
    for wrong in (5, "text", None, classmethod(lambda kind: None)):
        for block, name in ((bursar.tag("x"), r"bursar\.tag\('x'\)"), (bursar.awake(), r"bursar\.awake\(\)")):
            with pytest.raises(TypeError, match=f"{name} decorates a function, not {type(wrong).__name__}"):
                block(wrong)


class Interrupt(Exception):
    """What a handler raises."""


def test_y3_a_signal_at_any_moment_leaves_no_block_begun() -> None:
    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupt

    numbers, before = random.Random(1), signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(2000):
            with pytest.raises(Interrupt):
                signal.setitimer(signal.ITIMER_REAL, numbers.uniform(10e-6, 60e-6))
                while True:
                    with bursar.tag("interrupted"):
                        pass
    finally:
        signal.signal(signal.SIGALRM, before)
    kept = bursar.Buffer(256)
    assert counted() == {"untagged": 1}
    del kept
