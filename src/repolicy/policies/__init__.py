"""Policies: observations to a distribution over actions, and their files."""
