"""Tensors that are freed on one stream while another reads them, with their contents checked. Prints a line of JSON."""

from __future__ import annotations

import argparse
import json
import time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--graphs", type=int, default=200, help="graphs that are captured and replayed beside it")
    options = parser.parse_args()
    import bursar
    import bursar.torch
    import torch

    bursar.use_pool(limit="2GiB")
    bursar.torch.enable()
    home, readers = torch.cuda.current_stream(), [torch.cuda.Stream() for _ in range(3)]
    wrong = torch.zeros(3, dtype=torch.int64, device="cuda")
    sizes = [1 << 10, 1 << 14, 1 << 18, 3 << 18]
    done, ends = 0, time.monotonic() + options.seconds
    for round_ in range(options.rounds):
        size, recorded = sizes[round_ % len(sizes)], round_ % 2 == 0
        used = readers[: 1 + round_ % 3]
        given = torch.full((size,), round_, dtype=torch.int32, device="cuda")
        for at, reader in enumerate(used):
            reader.wait_stream(home)
            with torch.cuda.stream(reader):
                if round_ % 7 == 0:
                    torch.cuda._sleep(50_000)
                wrong[at] += (given != round_).sum()
            if recorded:
                given.record_stream(reader)
            else:
                home.wait_stream(reader)
        del given
        overwritten = torch.full((size,), -1 - round_, dtype=torch.int32, device="cuda")
        del overwritten
        done += 1
        if time.monotonic() > ends:
            break
    torch.cuda.synchronize()
    graphs, broken = 0, 0
    for round_ in range(options.graphs):
        graph, given = torch.cuda.CUDAGraph(), torch.zeros(1 << 16, device="cuda")
        with torch.cuda.graph(graph):
            result = ((given * 2 + 1).sqrt() * 3).sum()
        noise = [torch.full((1 << 16,), -5.0, device="cuda") for _ in range(20)]
        given.fill_(4.0)
        graph.replay()
        broken += int(abs(result.item() - 9.0 * (1 << 16)) > 1.0)
        graphs += 1
        del graph, result, noise, given
        if time.monotonic() > ends:
            break
    answer = {"bench": "streams", "rounds": done, "wrong": int(wrong.sum().item()), "graphs": graphs, "broken": broken}
    answer["held"], answer["allocated"] = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
