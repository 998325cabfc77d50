"""The same objective inside other people's pipelines: rsl_rl (and so Isaac Lab and mjlab), Stable-Baselines3, any loop.

    repolicy.adapters.rsl_rl:ResidualPPO    a class name in a runner's settings
    repolicy.adapters.sb3:ResidualPPO       in the place of stable_baselines3.PPO
    repolicy.adapters.reward:prior_reward   one function for a training loop of your own

Each module imports its own library, and only that one.
"""
