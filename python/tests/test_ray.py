"""Shares of cards for tasks and actors, on a real Ray cluster of four nodes on loopback."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bursar
import pytest
from ray_cluster import RayCluster
from ray_programs import Leaves, Looks, Parent, crash, look_once, modules, share_of, take_by_itself
from ray_storm import Storm

GIB = 1 << 30

#: The seconds in which bytes are back.
BACK = 5.0

#: The cards of each node; no two nodes have the same.
CARDS = ["2x8GiB", "1x16GiB", "2x4GiB", "1x24GiB"]

LIBRARY = os.environ.get("BURSAR_TEST_LIBCUDA", "")

HAS_RAY = importlib.util.find_spec("ray") is not None

needs_ray = pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A cluster of four nodes, the last two of which have CUDA's interface to their cards where that was built."""
    started = RayCluster(CARDS, {2: LIBRARY, 3: LIBRARY} if LIBRARY else {})
    try:
        yield started
    finally:
        started.stop()


def within(seconds: float, condition: Callable[[], bool], what: str) -> None:
    """Waits until a condition holds, which has to be so in time."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, what
        time.sleep(0.05)


def settle(cluster: RayCluster) -> None:
    """Waits until workers are gone that Ray started and gave nothing: for a task that another took, or an actor that was killed."""
    within(60, lambda: taken(cluster) == 0, "the bytes of workers without work")


def taken(cluster: RayCluster) -> int:
    """Returns the bytes that are taken on all nodes."""
    return sum(node.taken() for node in cluster.nodes)


def parent_of(process: int) -> int:
    """Returns the parent of a process."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def actor(**options: Any) -> Any:
    """Returns the actor class with options."""
    ray: Any = importlib.import_module("ray")
    made: Any = ray.remote(Looks)
    return made.options(num_cpus=0, **options)


@needs_ray
def test_c1_an_actor_has_its_bytes_on_one_card_before_its_code_runs(cluster: RayCluster) -> None:
    ray, shares = modules()
    one = actor(**shares.gpu("6GiB")).remote()
    given = ray.get(one.look.remote())
    assert given["bytes"] == 6 * GIB and given["seen"] == given["uuid"] and given["at_start"] >= 6 * GIB
    owner = [card for node in cluster.nodes for card in node.ledger() if card.uuid == given["uuid"]]
    assert [card.set_aside for card in owner] == [6 * GIB]
    ray.kill(one)
    within(BACK, lambda: taken(cluster) == 0, "the bytes of a killed actor")


@needs_ray
@pytest.mark.parametrize("way", ["ends", "killed", "worker", "holder"])
def test_c2_the_bytes_are_back_however_an_actor_ends(cluster: RayCluster, way: str) -> None:
    ray, shares = modules()
    settle(cluster)
    one = actor(**shares.gpu("3GiB", label=way)).remote()
    pid = ray.get(one.look.remote())["pid"]
    assert ray.get(one.take.remote(GIB)) == GIB and taken(cluster) == 3 * GIB
    assert sum(card.held for node in cluster.nodes for card in node.ledger()) >= GIB
    if way == "ends":
        del one
    elif way == "killed":
        ray.kill(one)
    else:
        os.kill(pid if way == "worker" else parent_of(pid), signal.SIGKILL)
    within(BACK, lambda: taken(cluster) == 0, "the bytes of an actor")
    within(BACK, lambda: not Path(f"/proc/{pid}").exists(), "the worker")


@needs_ray
def test_c2_the_bytes_are_back_when_an_actor_leaves_threads_behind(cluster: RayCluster) -> None:
    ray, shares = modules()
    settle(cluster)
    one = ray.remote(num_cpus=0, **shares.gpu("3GiB"))(Leaves).remote()
    shares.ready(one, timeout=60)
    assert taken(cluster) == 3 * GIB
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(one.leave.remote(), timeout=60)
    within(BACK, lambda: taken(cluster) == 0, "the bytes of an actor that left")


@needs_ray
def test_c1_forty_actors_never_put_a_card_over_its_limit(cluster: RayCluster) -> None:
    ray, shares = modules()
    seed = int(os.environ.get("BURSAR_RAY_SEED", "23"))
    sizes = [size << 20 for size in random.Random(seed).choices(range(128, 2048), k=40)]
    actors = [actor(max_restarts=8, max_task_retries=-1, **shares.gpu(size, timeout=5)).remote() for size in sizes]
    looked, ends = [each.look.remote() for each in actors], time.monotonic() + 150
    waiting = list(looked)
    while waiting and time.monotonic() < ends:
        _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=0.1)
        for card in (card for node in cluster.nodes for card in node.ledger()):
            assert card.held + card.set_aside <= card.limit, (seed, card)
    assert not waiting, f"seed {seed}: {len(waiting)} of 40 actors do not run:\n{shares.state(timeout=60)}"
    given = ray.get(looked)
    assert [each["bytes"] for each in given] == sizes and all(each["at_start"] >= each["bytes"] for each in given), seed
    for card in (card for node in cluster.nodes for card in node.ledger()):
        assert card.set_aside == sum(each["bytes"] for each in given if each["uuid"] == card.uuid), (seed, card)
    seen = {card.uuid: card.set_aside for _, card in shares.state(timeout=60).cards}
    assert seen == {card.uuid: card.set_aside for node in cluster.nodes for card in node.ledger()}

    # Half of them are killed in two ways, and the other half by their scheduler.
    for number, each in enumerate(actors[::2]):
        ray.kill(each) if number % 2 else os.kill(parent_of(given[2 * number]["pid"]), signal.SIGKILL)
    for each in actors:
        ray.kill(each)
    within(BACK, lambda: all(not Path(f"/proc/{each['pid']}").exists() for each in given), "the workers of forty actors")
    settle(cluster)


@needs_ray
def test_c2_a_storm_puts_no_card_over_its_limit_and_leaves_nothing_behind(cluster: RayCluster) -> None:
    seed, seconds = int(os.environ.get("BURSAR_RAY_SEED", "23")), int(os.environ.get("BURSAR_RAY_STORM_MS", "3000")) / 1000
    storm = Storm(cluster, seed)
    storm.run(seconds)
    print(f"BURSAR_RAY_SEED={seed}", storm.counts)
    settle(cluster)
    within(60, lambda: not any(card.waiting for node in cluster.nodes for card in node.ledger()), "requests without an actor")


@needs_ray
def test_c1_a_worker_that_ray_keeps_keeps_no_share(cluster: RayCluster) -> None:
    ray, shares = modules()
    look: Any = ray.remote(look_once)
    found = ray.get([look.options(num_cpus=0, **shares.gpu(size * GIB)).remote() for size in (1, 2, 3, 1, 2, 3)])
    assert [size for size, _ in found] == [size * GIB for size in (1, 2, 3, 1, 2, 3)]
    settle(cluster)


@needs_ray
def test_c1_what_an_actor_with_a_share_makes_has_a_share_only_if_it_asks(cluster: RayCluster) -> None:
    ray, shares = modules()
    settle(cluster)
    parent = ray.remote(num_cpus=0, **shares.gpu("20GiB"))(Parent).remote()
    assert ray.get(parent.make.remote(), timeout=90) == [0, 0, 0, GIB, (0, ""), (0, "marked")]
    within(BACK, lambda: taken(cluster) == 20 * GIB, "the bytes of the child that asked")
    assert ray.get(parent.plan.remote(), timeout=90) == (20 * GIB, 3)
    ray.kill(parent)
    within(BACK, lambda: taken(cluster) == 0, "the bytes of a parent")


@needs_ray
def test_c1_a_ray_that_makes_tasks_otherwise_still_has_workers_with_shares(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    kind = importlib.import_module("ray.remote_function").RemoteFunction
    others = importlib.import_module("ray.actor").ActorClass
    monkeypatch.delattr(kind, "_remote")
    monkeypatch.setattr(others, "_remote", others._remote)
    before = others._remote
    importlib.import_module("bursar._ray_start").make_children_ordinary()
    assert not hasattr(kind, "_remote") and others._remote is not before
    assert "RemoteFunction of this Ray is unknown" in capfd.readouterr().err


@needs_ray
def test_c3_a_share_that_another_runtime_environment_replaced_is_an_error(cluster: RayCluster) -> None:
    ray, shares = modules()
    marked = {"env_vars": {"BURSAR_TEST_MARK": "marked"}}
    asks: Any = ray.remote(num_cpus=0, **shares.gpu("1GiB"))(share_of)
    with pytest.raises(bursar.InvalidValue, match=r"bursar\.ray\.gpu\(…, runtime_env=…\)"):
        ray.get(asks.options(runtime_env=marked).remote(), timeout=60)
    assert ray.get(asks.options(**shares.gpu("1GiB", runtime_env=marked)).remote(), timeout=60) == GIB
    # Ray's count alone is no share, and a share needs no count.
    alone = [asks.options(resources={}).remote(), asks.options(resources={}, runtime_env=marked).remote()]
    assert ray.get(alone, timeout=60) == [GIB, 0]
    assert bursar.share() is None
    settle(cluster)


@needs_ray
def test_c1_an_actor_that_ray_restarts_finds_its_bytes(cluster: RayCluster) -> None:
    ray, shares = modules()
    one = actor(max_restarts=1, max_task_retries=-1, **shares.gpu("20GiB")).remote()
    first = ray.get(one.look.remote())
    os.kill(first["pid"], signal.SIGKILL)
    second = ray.get(one.look.remote())
    # Only one card is as large.
    assert second["pid"] != first["pid"] and (second["uuid"], second["bytes"]) == (first["uuid"], 20 * GIB)
    ray.kill(one)
    within(BACK, lambda: taken(cluster) == 0, "the bytes of a restarted actor")


@needs_ray
def test_c1_whoever_overruns_its_share_is_alone_out_of_memory(cluster: RayCluster) -> None:
    ray, shares = modules()
    actors = [actor(**shares.gpu("5GiB", device=cluster.nodes[1].ledger()[0].uuid)).remote() for _ in range(3)]
    with pytest.raises(bursar.OutOfMemory):
        ray.get(actors[0].take.remote(6 * GIB))
    assert ray.get([each.take.remote(4 * GIB) for each in actors]) == [4 * GIB] * 3
    assert len({each["uuid"] for each in ray.get([each.look.remote() for each in actors])}) == 1
    for each in actors:
        ray.kill(each)
    within(BACK, lambda: taken(cluster) == 0, "the bytes of actors that overran")


@needs_ray
@pytest.mark.skipif(not LIBRARY, reason="BURSAR_TEST_LIBCUDA names no libbursar_libcuda.so")
def test_c1_a_library_that_knows_nothing_of_bursar_is_kept_inside_its_share(cluster: RayCluster) -> None:
    ray, shares = modules()
    # The driver of these nodes is CUDA's interface. The first of them has two cards, of which each worker sees its own.
    take: Any = ray.remote(take_by_itself)
    uuids = [card.uuid for node in cluster.nodes[2:] for card in node.ledger()]
    asked = list(zip((300, 400, 500), uuids, strict=True))
    takers = [take.options(num_cpus=0, **shares.gpu(size << 20, device=uuid)).remote() for size, uuid in asked]
    assert ray.get(takers) == [300, 400, 500]
    settle(cluster)


@needs_ray
@pytest.mark.parametrize("layout", ["one_card", "pack", "spread"])
def test_c1_the_shares_of_a_group_are_where_they_were_planned(cluster: RayCluster, layout: str) -> None:
    ray, shares = modules()
    group = shares.placement_group(["5GiB", "3GiB", "6GiB"], layout=layout)
    assert group.ready(timeout=30)
    actors = [actor(**group.gpu(number)).remote() for number in range(len(group))]
    given = ray.get([each.look.remote() for each in actors])
    assert [(each["uuid"], each["bytes"]) for each in given] == [(share.card, share.bytes) for share in group.shares]
    assert len({share.card for share in group.shares}) == {"one_card": 1, "pack": 1, "spread": 3}[layout]
    assert len({share.node for share in group.shares}) == {"one_card": 1, "pack": 1, "spread": 3}[layout]
    group.remove()
    within(BACK, lambda: taken(cluster) == 0, "the bytes of a group that was removed")


@needs_ray
def test_c1_a_group_has_the_processors_of_its_tasks(cluster: RayCluster) -> None:
    ray, shares = modules()
    settle(cluster)
    group = shares.fit("2GiB", fixed="1GiB", want=2, headroom=1.0, timeout=60).placement_group()
    # A task has one CPU unless it says otherwise, and so has each share of a group.
    look: Any = ray.remote(look_once)
    found = ray.get([look.options(**group.gpu(number)).remote() for number in range(2)], timeout=60)
    assert found == [(share.bytes, share.card) for share in group.shares]
    group.remove()
    more = shares.placement_group(["1GiB", "1GiB"], layout="one_card", num_cpus=1.5, resources={f"node:{cluster.nodes[0].address}": 0.01}, timeout=60)
    (bundle,) = more.placement_group.bundle_specs
    assert bundle["CPU"] == 3 and bundle[f"node:{cluster.nodes[0].address}"] == 0.02 and bundle[shares.RESOURCE] == 2 * GIB
    more.remove()
    for wrong in (-1, float("nan")):
        with pytest.raises(bursar.InvalidValue):
            shares.placement_group(["1GiB"], num_cpus=wrong)
    settle(cluster)


@needs_ray
def test_c1_what_a_group_has_is_in_no_other_plan(cluster: RayCluster) -> None:
    ray, shares = modules()
    settle(cluster)
    # Each would be on the largest card, which has room for one.
    half = cluster.nodes[3].ledger()[0].limit // 2 + GIB
    both = [shares.placement_group([half], layout="spread", timeout=60) for _ in range(2)]
    assert all(group.ready(timeout=30) for group in both)
    assert both[0].shares[0].card != both[1].shares[0].card
    first = both[0].shares[0]
    found = shares.state(timeout=60)
    (kept,) = [each for _, each in found.cards if each.uuid == first.card]
    assert found.kept[first.card] == first.bytes and found.left_on(kept) == kept.limit - first.bytes
    assert f"Ray for groups {first.bytes // GIB} GiB" in str(found)
    # What runs in a group has its bytes in the ledger, and they are counted once.
    one = actor(**both[0].gpu(0)).remote()
    shares.ready(one, timeout=60)
    within(BACK, lambda: not shares.state(timeout=60).kept[first.card], "what Ray keeps")
    found = shares.state(timeout=60)
    assert [found.left_on(each) for _, each in found.cards if each.uuid == first.card] == [kept.limit - first.bytes]
    for group in both:
        group.remove()
    within(BACK, lambda: taken(cluster) == 0 and not any(shares.state(timeout=60).kept.values()), "the bytes of two groups")


@needs_ray
def test_c3_a_worker_that_crashes_is_not_out_of_memory_by_what_others_were_refused(cluster: RayCluster) -> None:
    ray, shares = modules()
    # A job of its own, of which nothing was refused yet.
    ray.shutdown()
    cluster.connect()
    node = cluster.nodes[0]
    with node.seen(), pytest.raises(bursar.OutOfMemory), bursar.reserve("1TiB", device=0, timeout=0, label="outside"):
        pass
    assert any(refusal.requested == 1 << 40 for _, _, refusal in shares.state(timeout=60).refusals)
    crashing: Any = ray.remote(num_cpus=0, max_retries=0)(crash)
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        shares.get(crashing.remote(), timeout=60)
    with node.reserved("2GiB", label="outside"):
        card = node.ledger()[0]
        asked = crashing.options(**shares.gpu(card.limit - GIB, device=card.uuid, timeout=0.2)).remote()
        with pytest.raises(bursar.OutOfMemory):
            shares.get(asked, timeout=60)


@needs_ray
def test_c3_a_ledger_that_cannot_be_read_is_named(cluster: RayCluster) -> None:
    ray, shares = modules()
    settle(cluster)
    node = cluster.nodes[0]
    card = node.ledger()[0]
    shares.ready(one := actor(**shares.gpu("1GiB", device=card.uuid)).remote(), timeout=60)
    ray.kill(one)
    settle(cluster)
    (file,) = node.folder.glob(f"*{card.uuid}*")
    sound = file.read_bytes()
    try:
        file.write_bytes(b"garbage")
        found = shares.state(timeout=60)
        assert [each.uuid for listed in found.nodes for each in listed.unreadable] == [card.uuid]
        assert card.uuid in str(found) and "cannot be read" in str(found) and card.uuid in shares.page(found)
        with pytest.raises(bursar.OutOfMemory) as refused:
            shares.fit("1TiB", timeout=60)
        assert card.uuid in str(refused.value)
    finally:
        file.write_bytes(sound)


@needs_ray
def test_c3_a_label_that_cannot_be_shown_is_refused() -> None:
    _, shares = modules()
    for label in (None, 5, "a\0b"):
        with pytest.raises(bursar.InvalidValue):
            shares.gpu("1GiB", label=label)


@needs_ray
def test_c3_a_share_is_no_larger_than_ray_can_count() -> None:
    _, shares = modules()
    for size in (1 << 63, (512 << 40) + 1):
        with pytest.raises(bursar.InvalidSize, match="512 TiB"):
            shares.gpu(size)
    assert len(json.dumps(shares.gpu("512TiB"), default=str)) < 10_000


@needs_ray
def test_c3_a_plan_over_the_cluster_explains_itself_and_ends_in_a_group(cluster: RayCluster) -> None:
    ray, shares = modules()
    plan = shares.fit("5GiB", fixed="1GiB", want=20, headroom=1.0, timeout=60)
    # One on each card of 8 GiB, none on those of 4, three on 16 and four on 24.
    assert plan.workers == 9 and plan.missing == 11
    for card in (card for node in cluster.nodes for card in node.ledger()):
        assert card.uuid in str(plan)
    group = shares.fit("5GiB", fixed="1GiB", want=3, headroom=1.0, timeout=60).placement_group()
    assert group.ready(timeout=30) and sorted(share.bytes for share in group.shares) == [6 * GIB] * 3
    one = actor(**group.gpu(0)).remote()
    assert ray.get(one.look.remote())["uuid"] == group.shares[0].card
    group.remove()
    with pytest.raises(bursar.OutOfMemory) as refused:
        shares.fit("30GiB", headroom=1.0, timeout=60)
    with pytest.raises(bursar.OutOfMemory) as too_large:
        shares.placement_group(["20GiB", "20GiB"])
    for card in (card for node in cluster.nodes for card in node.ledger()):
        assert card.uuid in str(refused.value) and card.uuid in str(too_large.value)
    within(BACK, lambda: taken(cluster) == 0, "the bytes of a plan")


@needs_ray
def test_m1_the_page_of_a_cluster_shows_every_card_and_holder(cluster: RayCluster) -> None:
    _, shares = modules()
    with cluster.nodes[1].reserved("3GiB", label="<outside>"), shares.serve(port=0) as served:
        with urllib.request.urlopen(served.url, timeout=30) as answer:
            shown = answer.read().decode()
        with urllib.request.urlopen(served.url + "api/state", timeout=30) as answer:
            told = json.load(answer)
        strange = urllib.request.Request(served.url, headers={"Host": "elsewhere.example"})
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(strange, timeout=30)
    for card in (card for node in cluster.nodes for card in node.ledger()):
        assert card.uuid in shown
    assert "&lt;outside&gt;" in shown and "<outside>" not in shown
    assert sum(card["set_aside"] for node in told["nodes"] for card in node["cards"]) == 3 * GIB


@needs_ray
def test_m1_a_page_without_a_cluster_or_a_port_says_so(cluster: RayCluster) -> None:
    ray, shares = modules()
    with shares.serve(port=0) as served:
        with pytest.raises(bursar.InvalidValue, match="port that is free"):
            shares.serve(port=int(served.url.rstrip("/").rpartition(":")[2]))
        ray.shutdown()
        try:
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(served.url, timeout=30)
            assert refused.value.code == 503 and "ray.init" in refused.value.read().decode()
            with pytest.raises(bursar.NoCluster):
                shares.serve(port=0)
            with pytest.raises(bursar.NoCluster):
                shares.fit("1GiB")
        finally:
            cluster.connect()
        with urllib.request.urlopen(served.url, timeout=30) as answer:
            assert answer.status == 200


@needs_ray
def test_c3_a_refusal_names_node_card_holder_and_what_is_left(cluster: RayCluster) -> None:
    ray, shares = modules()
    node = cluster.nodes[3]
    with node.reserved("10GiB", label="outside"):
        one = actor(**shares.gpu("18GiB", timeout=1)).remote()
        with pytest.raises(bursar.OutOfMemory) as refused:
            shares.ready(one, timeout=60)
        card = node.ledger()[0]
    told = str(refused.value)
    for part in ("18 GiB of one card", node.address, card.uuid, "14 GiB left of 24 GiB", f"(pid {os.getpid()}) [outside] 10 GiB"):
        assert part in told, told
    assert any(refusal.requested == 18 * GIB for _, _, refusal in shares.state(timeout=60).refusals)
    within(BACK, lambda: taken(cluster) == 0, "nothing of a refused actor")


@needs_ray
def test_c2_an_actor_that_is_killed_while_it_waits_waits_no_longer_than_its_time(cluster: RayCluster) -> None:
    ray, shares = modules()
    node = cluster.nodes[3]
    with node.reserved("10GiB", label="outside"):
        one = actor(**shares.gpu("18GiB", timeout=3)).remote()
        within(60, lambda: [each.bytes for each in node.ledger()[0].waiting] == [18 * GIB], "the request of an actor")
        ray.kill(one)
        within(3 + BACK, lambda: not node.ledger()[0].waiting, "the end of the request of a killed actor")
    within(BACK, lambda: taken(cluster) == 0, "nothing of a killed actor")


@needs_ray
def test_c3_a_request_that_fits_nowhere_says_so_in_its_time(cluster: RayCluster) -> None:
    ray, shares = modules()
    shares.state(timeout=60)
    started = time.monotonic()
    one = actor(**shares.gpu("25GiB")).remote()
    with pytest.raises(bursar.Timeout) as late:
        shares.ready(one, timeout=8)
    assert 8 <= time.monotonic() - started < 12
    for card in (card for node in cluster.nodes for card in node.ledger()):
        assert card.uuid in str(late.value) and f"{card.limit // GIB} GiB left of {card.limit // GIB} GiB" in str(late.value)
    ray.kill(one)


@needs_ray
def test_c1_what_is_refused_on_one_node_is_tried_on_another(cluster: RayCluster) -> None:
    ray, shares = modules()
    with cluster.nodes[0].reserved("8GiB", label="outside"), cluster.nodes[0].reserved("8GiB", device=1, label="outside"):
        look: Any = ray.remote(look_once)
        asked = [look.options(num_cpus=0, max_retries=4, **shares.gpu("2GiB", timeout=0.2)).remote() for _ in range(4)]
        found = shares.get(asked, timeout=90)
        here = {card.uuid for card in cluster.nodes[0].ledger()}
    assert all(size == 2 * GIB and uuid not in here for size, uuid in found)
    settle(cluster)


@needs_ray
def test_c2_the_bytes_are_back_when_a_raylet_is_killed(cluster: RayCluster) -> None:
    ray, shares = modules()
    node = cluster.nodes[3]
    one = actor(**shares.gpu("20GiB")).remote()
    pid = ray.get(one.look.remote())["pid"]
    assert node.taken() == 20 * GIB
    os.kill(node.raylet(), signal.SIGKILL)
    within(BACK, lambda: node.taken() == 0, "the bytes of an actor whose node died")
    within(BACK, lambda: not Path(f"/proc/{pid}").exists(), "the worker")
    # A node that joins is used.
    cluster.restart(node)
    again = actor(**shares.gpu("20GiB")).remote()
    shares.ready(again, timeout=60)
    assert node.taken() == 20 * GIB
    ray.kill(again)
    within(BACK, lambda: taken(cluster) == 0, "the bytes on a node that joined")


def test_without_ray_bursar_is_imported_and_bursar_ray_says_what_to_install() -> None:
    program = """
import sys
sys.modules["ray"] = None
import bursar
try:
    import bursar.ray
except ImportError as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "bursar.ray needs Ray, which is not installed: pip install 'bursar[ray]'\n"), ran.stderr
