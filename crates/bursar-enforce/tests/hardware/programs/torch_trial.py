"""PyTorch in a share, with whichever allocator its environment names: it trains, captures, runs out of memory in its own way and goes on."""

import os

import trial
from trial import GIB, MIB, check, gib, see, skip

trial.begin()
try:
    import torch
except ImportError:
    trial.without("torch")

BACKEND = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "native")
IS_ASYNC = "cudaMallocAsync" in BACKEND


def train(steps):
    """Returns the first and the last loss of a small net that learns."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    data = torch.randn(1024, 512, device="cuda")
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(data), data)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


def use_streams():
    """Returns whether work on several streams, freed on others, is right."""
    streams = [torch.cuda.Stream() for _ in range(4)]
    sums = []
    for round_number in range(20):
        for number, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                block = torch.full((1 << 20,), float(number + round_number), device="cuda")
                block.record_stream(torch.cuda.default_stream())
                sums.append((number + round_number, block.mean()))
    torch.cuda.synchronize()
    return all(abs(expected - mean.item()) < 1e-3 for expected, mean in sums)


def capture():
    """Returns a graph, what goes in and what comes out."""
    given = torch.ones(1 << 20, device="cuda")
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        for _ in range(3):
            _ = (given * 2 + 1).relu()
    torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = (given * 2 + 1).relu()
    return graph, given, result


def replay_is_right(graph, given, result, value):
    given.fill_(value)
    graph.replay()
    torch.cuda.synchronize()
    # Two elements are looked at: comparing all would take memory, of which there may be none.
    return result[0].item() == result[-1].item() == value * 2 + 1


def fill():
    """Takes memory until PyTorch says that there is none, in large and then in small pieces. Returns the pieces and the types of the errors.

    The errors themselves would keep the pieces alive.
    """
    pieces, errors = [], []
    for size in (512 * MIB, 64 * MIB):
        while len(pieces) < 1000:
            try:
                pieces.append(torch.empty(size, dtype=torch.uint8, device="cuda").fill_(1))
            except RuntimeError as error:
                errors.append(type(error))
                break
    return pieces, errors


free, total = torch.cuda.mem_get_info()
trial.is_share(total)
check(free <= total, "what is free is of the share", f"{free} of {total}")
properties = torch.cuda.get_device_properties(0)
check(properties.total_memory == trial.SHARE, "the device's properties show the share", properties.total_memory)

first, last = train(60)
check(last < 0.8 * first, "a net learns", f"loss {first:.4f} to {last:.4f}")
check(use_streams(), "work on four streams is right")
graph, given, result = capture()
check(replay_is_right(graph, given, result, 3.0), "a graph replays")

try:
    torch.empty(trial.SHARE + GIB, dtype=torch.uint8, device="cuda")
    check(False, "more than the share", "granted")
except torch.cuda.OutOfMemoryError as error:
    check(True, "more than the share is torch.cuda.OutOfMemoryError", str(error).splitlines()[0])

torch.cuda.synchronize()
torch.cuda.empty_cache()
free_before = torch.cuda.mem_get_info()[0]
before = torch.cuda.memory_allocated()
pieces, errors = fill()
taken = sum(piece.numel() for piece in pieces)
check(len(errors) == 2, "memory runs out", f"{len(pieces)} pieces, {len(errors)} errors")
check(all(issubclass(error, torch.cuda.OutOfMemoryError) for error in errors), "as torch.cuda.OutOfMemoryError", [error.__name__ for error in errors])
torch.cuda.synchronize()
allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
check(abs(allocated - before - taken) <= (32 * MIB if IS_ASYNC else 0), "memory_allocated is what was taken", f"{allocated} - {before}, {taken} taken")
check(reserved >= allocated, "memory_reserved is no less", f"{reserved} and {allocated}")
check(reserved <= trial.SHARE, "memory_reserved is within the share", f"{gib(reserved)}")
check(taken + 64 * MIB + 256 * MIB >= free_before, "what was free could be had", f"{gib(taken)} of {gib(free_before)}")
check(torch.cuda.memory_stats().get("num_ooms", 0) >= 3 or IS_ASYNC, "the statistics count what was refused", torch.cuda.memory_stats().get("num_ooms"))
try:
    segments = torch.cuda.memory_snapshot()
    snapshot = sum(segment["total_size"] for segment in segments)
    if IS_ASYNC and not segments:
        skip("memory_snapshot", "this allocator has none")
    else:
        check(snapshot == reserved, "memory_snapshot sums up to memory_reserved", f"{snapshot} and {reserved}")
except RuntimeError as error:
    if IS_ASYNC:
        skip("memory_snapshot", str(error).splitlines()[0])
    else:
        check(False, "memory_snapshot", str(error).splitlines()[0])
check(all(int(piece[0]) == 1 and int(piece[-1]) == 1 for piece in pieces), "everything that was granted can be used")
trial.mark_full(reserved)
free_full = torch.cuda.mem_get_info()[0]
see("left when full", f"{free_full / MIB:.0f} MiB")
check(replay_is_right(graph, given, result, 5.0), "a graph replays when memory is full")

del pieces
torch.cuda.synchronize()
torch.cuda.empty_cache()
after = torch.cuda.mem_get_info()[0]
# What the driver loaded for kernels meanwhile is charged by now, and stays.
check(after + 256 * MIB >= free_before, "empty_cache gives it back", f"{gib(after)} free, {gib(free_before)} before")
trial.mark("emptied")
first, last = train(60)
check(last < 0.8 * first, "a net learns afterwards", f"loss {first:.4f} to {last:.4f}")
check(replay_is_right(graph, given, result, 7.0), "a graph replays afterwards")
block = torch.empty(trial.SHARE // 2, dtype=torch.uint8, device="cuda").fill_(2)
check(int(block[-1]) == 2, "half the share in one piece afterwards")
trial.end()
