"""Logs of the pool of this process, on simulated devices."""

from __future__ import annotations

import errno
import gc
import gzip
import os
import random
import signal
import time
from pathlib import Path

import bursar
import pytest
from conftest import Card, eventually

pytestmark = pytest.mark.usefixtures("devices")


def test_a_log_has_what_happened(tmp_path: Path) -> None:
    with bursar.log(tmp_path / "run.csv.gz") as log:
        with bursar.tag("logged"):
            held = bursar.Buffer(1000)
        del held
    assert log.dropped == 0
    lines = gzip.decompress((tmp_path / "run.csv.gz").read_bytes()).decode().splitlines()
    assert sum("logged" in line for line in lines) == 2


def test_y3_a_log_to_a_pipe_that_nobody_reads_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    with pytest.raises(BrokenPipeError, match="nobody reads the pipe"):
        bursar.log(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with bursar.log(pipe):
            bursar.Buffer(4096)
        assert b"allocate" in os.read(reader, 1 << 16)
    finally:
        os.close(reader)


def test_a_process_logs_as_often_as_it_wants(tmp_path: Path) -> None:
    for number in range(40):
        path = tmp_path / f"{number % 3}.csv"
        with bursar.log(path) as log:
            bursar.Buffer(1000 + number)
        assert log.close() == 2, "an allocation and a free"
        bursar.Buffer(10)
        assert f"{1000 + number}" in path.read_text()


def test_two_logs_have_what_happened_while_they_were_open(tmp_path: Path) -> None:
    with bursar.log(tmp_path / "outer.csv") as outer:
        with bursar.log(tmp_path / "inner.csv") as inner:
            bursar.Buffer(1000)
        bursar.Buffer(2000)
    assert inner.close() < outer.close()


@pytest.mark.parametrize("name", ["run.csv", "run.csv.gz", "run.jsonl", "run.jsonl.gz"])
@pytest.mark.parametrize("end", ["", "; raise SystemExit", "; kept.close()", "; kept.close(); again = bursar.log(path + '.csv')"])
def test_a_log_that_nobody_closes_is_whole_when_the_interpreter_ends(card: Card, tmp_path: Path, name: str, end: str) -> None:
    path = tmp_path / name
    lines = [
        "import bursar",
        f"path = {str(path)!r}",
        "kept = bursar.log(path)",
        f"for _ in range(50): bursar.Buffer('1MiB')",
        f"pass{end}",
    ]
    card.run("\n".join(lines))
    contents = path.read_bytes()
    text = (gzip.decompress(contents) if name.endswith(".gz") else contents).decode()
    assert text.count("1048576") >= 50


class Interrupt(Exception):
    """What a handler raises."""


def test_y3_a_signal_at_any_moment_leaves_no_log_begun(tmp_path: Path) -> None:
    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupt

    def log(path: Path) -> float:
        began = time.monotonic()
        with bursar.log(path):
            pass
        return time.monotonic() - began

    takes = min(log(tmp_path / f"{number}.csv") for number in range(10))
    numbers, before, interrupted = random.Random(1), signal.signal(signal.SIGALRM, interrupt), 0
    path = tmp_path / "interrupted.csv"
    try:
        for number in range(1500):
            try:
                signal.setitimer(signal.ITIMER_REAL, numbers.uniform(1e-6, 1.5 * takes))
                with bursar.log(path):
                    pass
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupt:
                interrupted += 1
            # A file that a log is written to is refused.
            assert bursar.log(path).close() == 0, f"round {number}, {interrupted} interrupted"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 100


def test_y3_an_interrupt_of_the_end_of_a_block_ends_the_log(tmp_path: Path) -> None:
    def interrupt(_number: int, _frame: object) -> None:
        raise Interrupt

    def drained() -> bool:
        try:
            piece = os.read(reader, 1 << 16)
        except BlockingIOError:
            return False
        read.extend(piece)
        return not piece

    read, pipe = bytearray(), tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupt), bursar.log(pipe) as log:
            # More than the pipe holds while nobody reads it.
            for _ in range(2000):
                bursar.Buffer(1000)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
        bursar.Buffer(12345)
        eventually(drained, "the log goes on")
        assert read.count(b",1000") >= 2000 and b"12345" not in read
        assert log.close() == 4000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        os.close(reader)


def test_y3_a_log_that_an_exception_takes_from_its_statement_ends_and_one_that_is_dropped_goes_on(tmp_path: Path) -> None:
    def fail() -> object:
        raise Interrupt

    with pytest.raises(Interrupt):
        print(bursar.log(tmp_path / "taken.csv"), fail())
    bursar.log(tmp_path / "taken.csv").close()
    bursar.log(tmp_path / "dropped.csv")
    gc.collect()
    with pytest.raises(bursar.InvalidValue, match="another log of this process"):
        bursar.log(tmp_path / "dropped.csv")


FORKED = """
import bursar, os, signal, sys
log = bursar.log(os.environ["BURSAR_LEDGER_DIR"] + "/run.csv.gz")
held = bursar.Buffer(1000)
if os.fork() == 0:
    signal.alarm(30)
    with log:
        sys.exit(3)
print(os.WTERMSIG(os.wait()[1]))
"""


def test_y3_a_forked_child_leaves_the_log_to_its_parent(card: Card, tmp_path: Path) -> None:
    assert card.run(FORKED) == "0\n"
    assert b"allocate" in gzip.decompress((tmp_path / "run.csv.gz").read_bytes())


def test_a_log_that_cannot_be_opened_says_which_and_why(tmp_path: Path) -> None:
    path = str(tmp_path / "nowhere" / "run.csv")
    for given in (path, os.fsencode(path), Path(path)):
        with pytest.raises(FileNotFoundError) as raised:
            bursar.log(given)
        assert (raised.value.errno, raised.value.filename) == (errno.ENOENT, path)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(IsADirectoryError) as refused:
        bursar.log(tmp_path / "folder.csv")
    assert refused.value.filename == str(tmp_path / "folder.csv")


@pytest.mark.parametrize("name", ["run.txt", "run", "run.csv.zip", ""])
def test_a_log_of_an_unknown_form_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(bursar.InvalidValue, match="a log is called .csv"):
        bursar.log(tmp_path / "folder" / name if name else "")


def test_a_path_of_bytes_is_a_path(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "run.csv")
    with bursar.log(path):
        bursar.Buffer(1000)
    assert b"allocate" in Path(os.fsdecode(path)).read_bytes()


@pytest.mark.parametrize("name", ["run.csv", "./run.csv", "link.csv"])
def test_a_file_that_a_log_is_written_to_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "link.csv").symlink_to("run.csv")
    with bursar.log(tmp_path / "run.csv"):
        bursar.Buffer(1000)
        with pytest.raises(bursar.InvalidValue, match=r"another log of this process is written to .*\.csv"):
            bursar.log(tmp_path / name)
    assert "1000" in (tmp_path / "run.csv").read_text()
    with bursar.log(tmp_path / name) as again:
        bursar.Buffer(2000)
    assert again.close() == 2


def test_a_log_has_one_block_and_none_once_it_has_ended(tmp_path: Path) -> None:
    log = bursar.log(tmp_path / "run.csv")
    with log:
        with pytest.raises(RuntimeError, match="the block has begun already"), log:
            pass
        bursar.Buffer(1000)
    assert log.close() == 2
    closed = bursar.log(tmp_path / "closed.csv")
    closed.close()
    for ended in (log, closed):
        with pytest.raises(RuntimeError, match="the log has ended: bursar.log"), ended:
            pass
