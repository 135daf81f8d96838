"""The tests behind the verdicts are what they say: error rates, power, intervals."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from paceline.verify.statistics import by_prefix, combine, detectable_variation, fit_group, holm

RNG = np.random.default_rng(7)


def draw(law: np.ndarray, count: int, rng: np.random.Generator) -> Counter[int]:
    return Counter(rng.choice(len(law), count, p=law).tolist())


def some_law(rng: np.random.Generator, size: int = 40) -> np.ndarray:
    law = rng.dirichlet(np.full(size, 0.3))
    law[law < 1e-4] = 0.0
    return law / law.sum()


def test_right_laws_fail_as_rarely_as_the_level_says() -> None:
    """1,200 places of three groups each; binomial bounds at four standard deviations."""
    rng = np.random.default_rng(1)
    p_values = []
    for _ in range(1200):
        laws = [some_law(rng) for _ in range(3)]
        counts = [draw(law, count, rng) for law, count in zip(laws, (128, 40, 24), strict=True)]
        p_values.append(combine([fit_group(c, [law]) for c, law in zip(counts, laws, strict=True)]).p_value)
    for level in (0.2, 0.05, 0.005):
        share = np.mean(np.array(p_values) < level)
        assert share <= level + 4 * np.sqrt(level * (1 - level) / 1200), (level, share)
    assert np.mean(np.array(p_values) < 0.5) > 0.4  # and it is no test that never fails


def test_the_stated_power_is_kept_by_an_error_of_any_shape() -> None:
    """Move TV t from the likeliest token to all others, or to one: found at least as often as promised."""
    rng = np.random.default_rng(2)
    law = np.array([0.4, 0.2, 0.15, 0.1, 0.1, 0.05])
    num_samples, level = 200, 0.005
    t = detectable_variation(num_samples, degrees=5, level=level, power=0.9)
    assert t is not None
    assert 0.1 < t < 0.25
    for direction in (np.array([-1, 0.2, 0.2, 0.2, 0.2, 0.2]), np.array([-1, 1, 0, 0, 0, 0])):
        wrong = law + t * direction
        found = [combine([fit_group(draw(wrong, num_samples, rng), [law])]).p_value < level for _ in range(400)]
        assert np.mean(found) > 0.9 - 4 * np.sqrt(0.9 * 0.1 / 400)


def test_the_interval_of_tv_covers_it() -> None:
    rng = np.random.default_rng(3)
    law, wrong = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.3, 0.3])  # TV 0.1
    fits = [combine([fit_group(draw(wrong, 300, rng), [law])]) for _ in range(300)]
    assert np.mean([fit.variation_low <= 0.1 <= fit.variation_high for fit in fits]) > 0.95
    assert all(fit.variation_high < 0.35 for fit in fits)


def test_a_token_of_probability_zero_needs_no_statistics() -> None:
    fit = combine([fit_group(Counter({0: 50, 1: 49, 2: 1}), [np.array([0.5, 0.5, 0.0])])])
    assert (fit.p_value, fit.num_impossible) == (0.0, 1)


def test_of_laws_that_differ_by_rounding_the_nearer_is_taken() -> None:
    without, with_it = np.array([0.6, 0.4, 0.0]), np.array([0.54, 0.36, 0.1])
    counts = Counter({0: 54, 1: 36, 2: 10})
    assert fit_group(counts, [without, with_it]).impossible == ()
    assert fit_group(counts, [without]).impossible == ((2, 10),)


def test_rare_tokens_share_a_cell_and_every_token_is_counted() -> None:
    law = np.array([0.7, 0.2, 0.02, 0.02, 0.02, 0.02, 0.02])
    fit = fit_group(draw(law, 100, RNG), [law])
    assert [token for token, _, _ in fit.cells] == [0, 1, None]
    assert sum(seen for _, _, seen in fit.cells) == 100
    assert sum(wanted for _, wanted, _ in fit.cells) == pytest.approx(100)
    assert all(wanted >= 5 for _, wanted, _ in fit.cells)


def test_a_rest_too_rare_for_a_cell_goes_to_the_rarest_other() -> None:
    law = np.array([0.9, 0.08, 0.02])
    fit = fit_group(Counter({0: 90, 1: 8, 2: 2}), [law])
    assert fit.cells == ((0, 90.0, 90), (None, pytest.approx(10.0), 10))


def test_nothing_can_be_found_where_one_token_is_certain() -> None:
    fit = combine([fit_group(Counter({0: 30}), [np.array([1.0, 0.0])])])
    assert (fit.degrees, fit.p_value) == (0, 1.0)
    assert detectable_variation(30, 0, 0.005, 0.9) is None


def test_holm() -> None:
    assert holm([0.0004, 0.5, 0.0003], 0.001) == [True, False, True]  # 0.001/3, then 0.001/2
    assert holm([0.0006, 0.0006], 0.001) == [False, False]
    assert holm([], 0.001) == []


def test_groups_are_by_what_stands_before() -> None:
    samples = [[1, 2, 3], [1, 2, 4], [1, 5], [6]]
    assert by_prefix(samples, 0) == {(): Counter({1: 3, 6: 1})}
    assert by_prefix(samples, 2) == {(1, 2): Counter({3: 1, 4: 1})}
