"""How many workers fit, beside what the command says."""

from __future__ import annotations

from typing import Any

import bursar
import pytest
from conftest import Card


def test_a_plan_counts_what_is_set_aside(card: Card) -> None:
    with bursar.reserve("2GiB"):
        plan = bursar.fit("1GiB", fixed="512MiB", workers=8, headroom=1.0)
    assert (plan.workers, plan.wanted, plan.reduced, plan.kind) == (5, 8, True, "simulated")
    assert (plan.available, plan.charged, plan.budget) == (6 << 30, 2 << 30, 6 << 30)
    (assignment,) = plan.assignments
    assert (assignment.device, assignment.uuid, assignment.workers) == (0, bursar.devices()[0].uuid, 5)
    assert plan.one_more is not None and plan.one_more.available == (6 << 30) + (512 << 20)
    assert plan.explanation in str(plan) and str(plan.advice) in str(plan)


def test_what_does_not_fit_into_vram_is_refused_unless_that_is_allowed(card: Card) -> None:
    with pytest.raises(bursar.OutOfMemory) as refused:
        bursar.fit("9GiB", headroom=1.0)
    assert (refused.value.requested, refused.value.limit) == (9 << 30, 8 << 30)
    with pytest.warns(RuntimeWarning, match="VRAM does not swap"):
        plan = bursar.fit("9GiB", headroom=1.0, allow_overflow=True)
    assert (plan.workers, plan.overflow) == (1, "worker")


def test_a_plan_for_ram_or_for_what_is_said_asks_no_device(card: Card) -> None:
    assert bursar.fit("4GiB", fixed="10GiB", workers=16, available="64GiB", memory="ram").workers == 8
    with pytest.warns(RuntimeWarning, match="will swap"):
        assert bursar.fit("4GiB", available="1GiB", memory="ram").overflow == "worker"
    assert bursar.fit("1KiB", memory="ram").kind is None


def test_devices_are_named_by_number_by_uuid_or_as_they_were_listed(card: Card) -> None:
    (device,) = bursar.devices()
    plans = [bursar.fit("1GiB", devices=[name]) for name in (0, device.uuid, device)]
    assert plans[0] == plans[1] == plans[2]
    for wrong in (1, -1, 1 << 40, "GPU-00000000-0000-0000-0000-000000000001"):
        with pytest.raises(bursar.NoDevice):
            bursar.fit("1GiB", devices=[wrong])
    with pytest.raises(bursar.InvalidValue, match="twice"):
        bursar.fit("1GiB", devices=[0, device])


def test_at_least_one_worker_is_wanted() -> None:
    for wrong in (0, -1):
        with pytest.raises(bursar.InvalidValue, match=f"not {wrong}"):
            bursar.fit("1GiB", workers=wrong, available="8GiB")


@pytest.mark.parametrize(
    ("headroom", "used"),
    [(1 / 3, 0.333333), (0.1 + 0.2, 0.3), (1 - 0.3, 0.7), (0.7 * 1.1, 0.77), (0.9999999, 0.999999), (1e-7, 1e-6), (1, 1.0)],
)
def test_a_headroom_is_any_fraction_rounded_down_to_millionths(card: Card, headroom: float, used: float) -> None:
    assert bursar.fit("4KiB", headroom=headroom).headroom == used


@pytest.mark.parametrize("headroom", [0.0, 1.5, -1.0, float("nan"), 1.0000001, float("inf")])
def test_a_headroom_that_is_none_is_refused(card: Card, headroom: float) -> None:
    with pytest.raises(bursar.InvalidValue, match="headroom"):
        bursar.fit("1GiB", headroom=headroom)


def test_an_answer_about_hardware_is_never_made_up(card: Card) -> None:
    card.environment["BURSAR_DRIVER"] = "auto"
    program = """
import bursar, warnings
try:
    print(bursar.fit("1GiB").kind)
except bursar.NoDevice as error:
    print("there is no GPU to use" in str(error), 'use_driver("sim")' in str(error))
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    kinds = {device.kind for device in bursar.devices() + bursar.devices()}
print(kinds, [warning.category.__name__ for warning in warned])
"""
    ran = card.python(program)
    printed, said = ran.communicate()
    without = "True True\n{'simulated'} ['SimulatedWarning']\n"
    assert (ran.returncode, said) == (0, "") and printed in (without, "cuda\n{'cuda'} []\n")


@pytest.mark.parametrize("wrong", ["3", 3.0, None, True])
def test_a_number_of_workers_is_an_int(wrong: Any) -> None:
    with pytest.raises(TypeError, match=f"workers is an int, not {type(wrong).__name__}"):
        bursar.fit(1, workers=wrong, available="1GiB")


def test_more_workers_than_can_be_counted_are_named() -> None:
    with pytest.raises(bursar.InvalidValue, match="at most"):
        bursar.fit(1, workers=1 << 70, available="1GiB")


def test_no_devices_are_not_all_devices() -> None:
    bursar.use_driver("sim", sim_devices="2x8GiB")
    with pytest.raises(bursar.NoDevice, match="devices names none"):
        bursar.fit("1GiB", devices=[])


@pytest.mark.parametrize(
    "call",
    [
        "bursar.devices()",
        "bursar.reserve(1).wait()",
        "asyncio.run(granted())",
        "bursar.Buffer(1)",
        "bursar.pinned(1)",
        "bursar.use_driver('auto')",
        "bursar.use_pool()",
    ],
)
def test_the_warning_of_simulated_devices_is_about_the_line_that_uses_them(card: Card, call: str) -> None:
    card.environment["BURSAR_DRIVER"] = "auto"
    program = f"""
import asyncio, bursar, warnings
async def granted():
    return await bursar.reserve(1)
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    {call}
print([warning.filename for warning in warned], bursar.devices()[0].kind)
"""
    assert card.run(program) in ("['<string>'] simulated\n", "[] cuda\n")
