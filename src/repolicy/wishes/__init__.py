"""Wishes that nobody writes down: learnt from a person who takes over, or who says which of two clips is better."""

from repolicy.envs import Features, LearntWish, open_wish
from repolicy.wishes.ask_page import ask
from repolicy.wishes.inference import Theta, inferred
from repolicy.wishes.learning_loop import Teaching, infer, learn_wish, record
from repolicy.wishes.pairs import Pairs, learnt, read_answers
from repolicy.wishes.preferences import bradley_terry
from repolicy.wishes.record import Labels, Record, RecordFile, Step
from repolicy.wishes.takeover import Takeover

__all__ = [
    "Features", "Labels", "LearntWish", "Pairs", "Record", "RecordFile", "Step", "Takeover", "Teaching", "Theta", "ask",
    "bradley_terry", "infer", "inferred", "learn_wish", "learnt", "open_wish", "read_answers", "record",
]  # fmt: skip
