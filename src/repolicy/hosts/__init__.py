"""The same objective inside other people's pipelines: rsl_rl (and so Isaac Lab and mjlab), Stable-Baselines3, any loop.

    repolicy.hosts.rsl_rl:ResidualPPO    a class name in a runner's settings
    repolicy.hosts.sb3:ResidualPPO       in the place of stable_baselines3.PPO
    repolicy.hosts.prior_reward:prior_reward   one function for a training loop of your own
    repolicy.hosts.reward_terms:term     wishes with a past, as reward terms of Isaac Lab and mjlab

Each module imports its own library, and only that one.
"""
