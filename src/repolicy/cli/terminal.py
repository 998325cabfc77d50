"""What people read while a command works, on stderr, as it is: `repolicy[sb3]` is no markup, `my.py:ok:` no emoji."""

from rich.console import Console


class Terminal(Console):
    def __init__(self) -> None:
        super().__init__(stderr=True, markup=False, highlight=False, emoji=False)

    def say(self, sentence: str) -> None:
        """A sentence on a line of its own, however long: a path that is broken in two cannot be copied."""
        self.print(sentence, soft_wrap=True)
