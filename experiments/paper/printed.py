"""The numbers of the paper's Tables 1, 2 and 5: (mean, std) over 500 episodes, five seeds."""

Pair = tuple[float, float]

# Tables 1 and, for `soft_state_std`, 5: task -> variant -> basic return, the average over seeds and the best seed.
LEARNED: dict[str, dict[str, tuple[Pair, Pair]]] = {
    "halfcheetah": {
        "no_entropy": ((2254.9, 1188.7), (4136.6, 1566.6)),
        "end_entropy": ((3291.5, 2006.0), (6049.3, 946.2)),
        "repeat_entropy": ((-114.9, 73.2), (-38.9, 58.2)),
        "soft": ((4993.7, 1262.3), (5896.5, 371.8)),
        "soft_state_std": ((2621.7, 1605.3), (5405.0, 1288.8)),
    },
    "hopper": {
        "no_entropy": ((2387.3, 1060.6), (3271.2, 573.4)),
        "end_entropy": ((2696.3, 978.0), (3654.4, 46.4)),
        "repeat_entropy": ((2611.6, 967.8), (3404.2, 226.0)),
        "soft": ((3105.3, 829.5), (3689.4, 29.2)),
        "soft_state_std": ((1504.0, 948.3), (2511.6, 784.6)),
    },
    "ant": {
        "no_entropy": ((3918.9, 1032.9), (4389.6, 296.7)),
        "end_entropy": ((3887.9, 991.4), (4223.4, 822.6)),
        "repeat_entropy": ((3241.2, 1299.7), (4023.9, 786.3)),
        "soft": ((3845.6, 911.7), (4581.1, 540.3)),
        "soft_state_std": ((3055.3, 1231.5), (3915.1, 599.9)),
    },
}
AVERAGE, BEST = (
    {task: {name: pairs[i] for name, pairs in variants.items()} for task, variants in LEARNED.items()} for i in (0, 1)
)

# Table 2: task -> variant -> total, basic, metric, add-on.
PARTS = ("total_reward", "basic_reward", "metric", "addon_reward")
CUSTOMIZED: dict[str, dict[str, tuple[Pair, Pair, Pair, Pair]]] = {
    "halfcheetah": {
        "prior": ((5357.0, 377.8), (5896.5, 371.8), (0.54, 0.01), (-539.8, 8.7)),
        "greedy": ((-1314.0, 252.4), (-1150.2, 236.0), (0.16, 0.02), (-163.7, 21.8)),
        "kl": ((5418.7, 150.1), (5776.3, 133.7), (0.36, 0.02), (-357.6, 17.7)),
        "residual": ((5488.3, 75.6), (5845.1, 69.5), (0.36, 0.01), (-356.3, 8.6)),
        "full": ((5556.2, 57.8), (6011.4, 57.2), (0.46, 0.01), (-455.2, 5.8)),
    },
    "hopper": {
        "prior": ((5133.7, 33.2), (3689.4, 29.2), (1.44, 0.01), (1444.3, 6.0)),
        "greedy": ((3714.5, 7.1), (2224.2, 6.5), (1.49, 0.00), (1490.2, 0.9)),
        "kl": ((3864.4, 50.1), (2400.3, 55.2), (1.46, 0.01), (1464.1, 6.1)),
        "residual": ((4401.4, 505.3), (2951.6, 333.5), (1.50, 0.03), (1449.5, 177.0)),
        "full": ((5142.7, 34.8), (3669.0, 26.8), (1.47, 0.00), (1473.6, 8.4)),
    },
    "ant": {
        "prior": ((4875.2, 589.4), (4581.1, 540.3), (0.29, 0.13), (294.1, 133.9)),
        "greedy": ((4340.6, 1464.5), (726.4, 277.1), (3.86, 0.96), (3613.9, 1246.4)),
        "kl": ((4019.4, 1103.4), (368.6, 151.8), (3.74, 0.92), (3650.6, 1047.6)),
        "residual": ((5568.3, 852.4), (1340.8, 220.0), (4.27, 0.63), (4227.4, 705.3)),
        "full": ((6185.1, 1142.0), (3543.0, 621.2), (2.70, 0.41), (2641.6, 542.8)),
    },
}


def value(task: str, variant: str, part: str, best: bool = False) -> float:
    """Return the paper's mean of a quantity: from Tables 1 and 5 if they have it, else from Table 2."""
    if part == "basic_reward" and variant in AVERAGE[task]:
        return (BEST if best else AVERAGE)[task][variant][0]
    return CUSTOMIZED[task][variant][PARTS.index(part)][0]
