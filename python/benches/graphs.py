"""The memory that eight graphs of one model hold, each for itself and shared, under PyTorch's private pools and under ours.

Prints a line of JSON for each way: ``held`` are the bytes that the allocator holds more than before the captures, once what nobody
uses was given back, and ``equal`` is whether every replay computes what the model does without a graph.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import allocators

#: The rows of the batches that are captured, largest first, as engines capture them.
BATCHES = (256, 192, 128, 96, 64, 32, 16, 8)
WIDTH, LAYERS = 2048, 12


def held_by_graphs(name: str, is_shared: bool) -> dict[str, object]:
    allocators.prepare(name)
    import torch

    allocator = allocators.use(name, None)
    torch.manual_seed(7)
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH))]
    layers += [torch.nn.Sequential(torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WIDTH)) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers).cuda().half().eval()
    inputs = [torch.randn(rows, WIDTH, device="cuda").half() for rows in BATCHES]
    with torch.no_grad():
        expected = [model(given) for given in inputs]
        # What libraries keep for a stream is made before anything is counted.
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for given in inputs:
                model(given)
        torch.cuda.synchronize()
        allocator.empty()
        before, pool, captured = torch.cuda.memory_reserved(), None, []
        for given in inputs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=side):
                output = model(given)
            captured.append((graph, output))
            pool = graph.pool() if is_shared else None
        allocator.empty()
        held = torch.cuda.memory_reserved() - before
        is_equal = True
        for _ in range(20):
            for (graph, output), result in zip(captured, expected):
                graph.replay()
                torch.cuda.synchronize()
                is_equal &= bool(torch.allclose(output, result, rtol=1e-2, atol=1e-2))
    return {"held": held, "equal": is_equal}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("ALLOCATOR", "separate|shared"))
    options = parser.parse_args()
    if options.one:
        name, way = options.one
        print(json.dumps(held_by_graphs(name, way == "shared")), flush=True)
        return
    for way in ("separate", "shared"):
        line: dict[str, object] = {"bench": "graphs", "graphs": len(BATCHES), "memory": way}
        for name in ("default", "bursar"):
            command = [sys.executable, __file__, "--one", name, way]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            failed = (ran.stderr.strip().splitlines() or ["failed"])[-1]
            line[name] = {"failed": failed} if ran.returncode else json.loads(ran.stdout.strip().splitlines()[-1])
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
