"""PPO on every core: one iteration, a rank's work, ranks, a run and its folder."""
