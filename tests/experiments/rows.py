"""Rows as a campaign writes them."""

from typing import Any

from experiments.paper.results import Results


def row(key: str, value: float, addon: float = -10.0, **more: Any) -> dict[str, Any]:
    """As the campaign writes one. The last policy's mean is `value` by the mean action and 1 more by sampled ones; the
    best policy's are 2 more."""

    def parts(basic: float) -> dict[str, list[float]]:
        rewards = {"basic_reward": [basic, 3.0], "addon_reward": [addon, 1.0], "total_reward": [basic + addon, 3.0]}
        return rewards | {"metric": [0.5, 0.1], "length": [1000.0, 0.0]}

    last, best = ({"mean": parts(basic), "sampled": parts(basic + 1)} for basic in (value, value + 2))
    curve = {"steps": [1.0, 2.0, 3.0], "basic_return": [None, value / 2, value]}
    curve |= {"episode_length": [None, 10.0, 10.0], "reward_task": [0.1, 0.1, 0.1]}
    return {
        "key": key, "episodes": 100, "last": last, "best": best, "curve": curve, "steps": 5_000_000, "seconds": 500.0,
        "steps_per_cpu_second": 20_000, "request": {"objective": {"task": "basic"}}, "commit": "c" * 40,
        "versions": {"torch": "2.13"}, "machine": {"processor": "one"},
    } | more  # fmt: skip


def results(**values: list[float]) -> Results:
    """HalfCheetah's, a list of seeds for each variant."""
    keys = {f"halfcheetah/{name}/{seed}": value for name, each in values.items() for seed, value in enumerate(each)}
    return Results({key: row(key, value) for key, value in keys.items()}, seeds=5)
