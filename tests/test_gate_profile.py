"""The measurement of step times: what is timed, in which order, and what is made of it."""

from __future__ import annotations

import pytest

from hybridspec.gate.cost import StepCost, StepTimeModel
from hybridspec.gate.profile import REPEATS, Shape, StepProfile

TRUE = StepCost(base=0.05, token=0.002, context=3e-6, model=0.01, row=0.001, attention=5e-7)
PRIOR = StepCost(base=0.1, token=0.001, context=1e-6, model=0.02)
WIDTHS = (1, 2, 4, 8, 32)


def run(profile: StepProfile, rows: int, most: int = 1000, long: bool = False) -> list[Shape]:
    """Steps of the true cost; each shape's first takes twice as long."""
    seen: list[Shape] = []
    context = rows * (1024 if long else 16)
    while len(seen) < most and (shape := profile.next(rows, long)) is not None:
        slow = 2.0 if shape not in seen else 1.0
        seconds = TRUE.seconds(shape.rows, shape.width, context, shape.model)
        profile.observe(shape, context, slow * seconds)
        seen.append(shape)
    return seen


def test_every_shape_is_timed_the_extremes_first() -> None:
    seen = run(StepProfile([1, 8], WIDTHS, model_steps=3), 1)
    assert seen[:3] == [Shape(1, 1, False), Shape(1, 32, False), Shape(1, 4, True)]
    assert {shape.width for shape in seen if not shape.model} == set(WIDTHS)
    assert all(seen.count(shape) == REPEATS for shape in seen)


def test_steps_of_very_many_tokens_are_not_timed() -> None:
    seen = run(StepProfile([32], WIDTHS, model_steps=3), 32)
    assert {shape.width for shape in seen} == {1, 2, 4}


def test_nothing_is_timed_at_other_row_counts() -> None:
    assert StepProfile([1, 8], WIDTHS, model_steps=3).next(5) is None


def test_the_model_foretells_what_was_timed_and_what_was_not() -> None:
    profile = StepProfile([1, 8], WIDTHS, model_steps=3, long_rows=8)
    run(profile, 1)
    run(profile, 8)
    short = profile.model(PRIOR)
    assert short is not None
    assert (short.prior.context, short.prior.attention) == (PRIOR.context, PRIOR.attention)
    assert {shape.width for shape in run(profile, 8, long=True)} == {1, 8}
    found = profile.model(PRIOR)
    assert found is not None
    for rows, width, context, model in (
        *((1, 1, 16, False), (8, 32, 128, False), (1, 8, 16, True), (4, 4, 64, False)),
        *((8, 1, 8192, False), (8, 8, 8192, False), (16, 4, 9000, True)),
    ):
        assert found.predict(rows, width, context, model) == pytest.approx(
            TRUE.seconds(rows, width, context, model), rel=0.01
        )


def test_a_measurement_cut_short_still_counts() -> None:
    profile = StepProfile([1, 8], WIDTHS, model_steps=3)
    run(profile, 1, most=2)
    assert profile.model(PRIOR) is None
    run(profile, 1, most=20)
    found = profile.model(PRIOR)
    assert found is not None
    assert found.predict(1, 32, 0, False) == pytest.approx(TRUE.seconds(1, 32, 0, False), rel=0.05)


def test_no_cost_is_negative() -> None:
    profile = StepProfile([1], WIDTHS, model_steps=3)
    for _ in range(3 * REPEATS * len(WIDTHS)):
        if (shape := profile.next(1)) is not None:
            profile.observe(shape, 16, 0.1 / shape.width)  # wider is faster: no machine does that
    found = profile.model(PRIOR)
    assert found is not None
    assert min(found.prior.base, found.prior.token, found.prior.model) >= 0
    assert found.predict(1, 1, 0, False) > 0


def test_a_model_takes_over_anothers_knowledge() -> None:
    held, other = StepTimeModel(PRIOR), StepTimeModel(TRUE)
    other.observe(1, 1, 0, False, 0.5)
    held.adopt(other)
    assert held.predict(1, 1, 0, False) == other.predict(1, 1, 0, False)
