"""Environments in batches, add-on rewards, rollouts and evaluations."""
