"""Wishes that are learned from a person, who takes over or says which of two clips is better."""

from repolicy.addons import Features, LearntWish, open_wish
from repolicy.wishes.ask_page import ask
from repolicy.wishes.inference import Theta, infer_theta
from repolicy.wishes.learning_loop import Teaching, infer, learn_wish, record
from repolicy.wishes.pairs import Pairs, learn_from_answers, read_answers
from repolicy.wishes.preferences import bradley_terry
from repolicy.wishes.record import Labels, Record, RecordFile, Step
from repolicy.wishes.takeover import Takeover

__all__ = [
    "Features", "Labels", "LearntWish", "Pairs", "Record", "RecordFile", "Step", "Takeover", "Teaching", "Theta", "ask",
    "bradley_terry", "infer", "infer_theta", "learn_from_answers", "learn_wish", "open_wish", "read_answers", "record",
]  # fmt: skip
