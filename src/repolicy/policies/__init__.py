"""Policies: what acts, and the files in which policies are kept."""
