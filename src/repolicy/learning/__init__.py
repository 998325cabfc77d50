"""Do it: PPO, one iteration, segments, `train` and `customize`."""

# The door: other rooms may import these, and nothing else of this folder.
__all__ = ["bench", "multipliers", "ppo", "run", "terms", "training", "worker"]
