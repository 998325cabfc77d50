"""Rows as a campaign writes them."""

from typing import Any


def row(key: str, value: float, addon: float = -10.0, **more: Any) -> dict[str, Any]:
    """As the campaign writes one; the seed's mean is `value`."""
    parts = {"basic_reward": [value, 3.0], "addon_reward": [addon, 1.0], "total_reward": [value + addon, 3.0]}
    ways = {action: parts | {"metric": [0.5, 0.1], "length": [1000.0, 0.0]} for action in ("mean", "sampled")}
    curve = {"steps": [1.0, 2.0, 3.0], "basic_return": [None, value / 2, value]}
    curve |= {"episode_length": [None, 10.0, 10.0], "reward_task": [0.1, 0.1, 0.1]}
    return {
        "key": key, "episodes": 100, "last": ways, "best": ways, "curve": curve, "steps": 5_000_000, "seconds": 500.0,
        "steps_per_cpu_second": 20_000, "request": {"objective": {"task": "basic"}}, "commit": "c" * 40,
        "versions": {"torch": "2.13"}, "machine": {"processor": "one"},
    } | more  # fmt: skip
