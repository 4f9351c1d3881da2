"""Four actors of Ray with PyTorch in exact shares of one GPU, one of which takes more than its share: the other three finish.

::

    python python/benches/ray_shares.py --share 8GiB

It needs a GPU, PyTorch, and Ray beside Bursar's wheel; ``carry_ray.py`` makes wheels of Ray for a machine without a network.
It prints what happened as JSON, and ends with status 1 if anything is not as promised.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from typing import Any

import bursar


class Trainer:
    """Trains a small model in memory of its share, or takes more than that."""

    def __init__(self) -> None:
        share = bursar.share()
        assert share is not None
        self.share = share
        self.torch: Any = importlib.import_module("torch")

    def about(self) -> dict[str, Any]:
        """Returns what it was given, and what PyTorch sees of it."""
        free, total = self.torch.cuda.mem_get_info()
        return {"pid": os.getpid(), "card": self.share.uuid, "share": self.share.bytes, "sees_free": free, "sees_total": total}

    def train(self, seconds: float) -> dict[str, Any]:
        """Fills three quarters of the share, and works in it for so long."""
        torch = self.torch
        began, steps = time.monotonic(), 0
        filling = torch.empty(int(self.share.bytes * 0.75) - (1 << 30), dtype=torch.uint8, device="cuda")
        filling.fill_(7)
        model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(4))).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        batch = torch.randn(512, 2048, device="cuda")
        while time.monotonic() - began < seconds:
            optimizer.zero_grad()
            loss = (model(batch) - batch).square().mean()
            loss.backward()
            optimizer.step()
            steps += 1
        torch.cuda.synchronize()
        # A part at a time: what the comparison makes is as large as what it compares.
        intact = all(bool((part == 7).all().item()) for part in filling.split(64 << 20))
        return {"steps": steps, "loss": float(loss), "intact": intact, "reserved": torch.cuda.memory_reserved()}

    def overrun(self) -> dict[str, Any]:
        """Takes memory until it is refused, and returns how much that was and who refused."""
        torch = self.torch
        taken: list[Any] = []
        try:
            while True:
                taken.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError as refused:
            return {"taken": len(taken) * (256 << 20), "error": type(refused).__name__, "message": str(refused)[:300]}


def main() -> int:
    """Runs the four actors, and judges what they say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", default="8GiB", help="the share of each actor; four must fit on one card")
    parser.add_argument("--seconds", type=float, default=10.0, help="for how long three of them train")
    words = parser.parse_args()
    ray: Any = importlib.import_module("ray")
    shares: Any = importlib.import_module("bursar.ray")
    share = bursar.parse_size(words.share)

    ray.init(num_cpus=4, num_gpus=0, resources=shares.resources(), labels=shares.labels(), include_dashboard=False)
    card = max(bursar.ledger().devices, key=lambda card: card.limit).uuid
    actors = [ray.remote(Trainer).options(num_cpus=1, **shares.gpu(share, device=card)).remote() for _ in range(4)]
    shares.ready(*actors, timeout=120)
    about = ray.get([actor.about.remote() for actor in actors])
    set_aside = sum(each.held + each.set_aside for each in bursar.ledger().devices if each.uuid == card)
    training = [actor.train.remote(words.seconds) for actor in actors[1:]]
    overrun = ray.get(actors[0].overrun.remote())
    trained = ray.get(training)
    for actor in actors:
        ray.kill(actor)
    killed = time.monotonic()
    while any(each.held + each.set_aside for each in bursar.ledger().devices) and time.monotonic() - killed < 30:
        time.sleep(0.02)
    back = time.monotonic() - killed
    ray.shutdown()

    found = {"about": about, "set_aside": set_aside, "overrun": overrun, "trained": trained, "back_seconds": back}
    judged = {
        "each has its share of the card": all(each["share"] == share and each["card"] == card for each in about),
        "PyTorch sees the share": all(each["sees_total"] <= share for each in about),
        "the shares were set aside": set_aside >= 4 * share,
        "one is refused inside its share": overrun["error"] == "OutOfMemoryError" and overrun["taken"] <= share,
        "three finish": all(each["steps"] > 0 and each["intact"] for each in trained),
        "the bytes are back within 5 s": back < 5,
    }
    print(json.dumps({**found, "judged": judged}, indent=2))
    return 0 if all(judged.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
