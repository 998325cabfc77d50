"""Wishes that nobody writes down: learnt from a person who takes over, or who says which of two clips is better."""
