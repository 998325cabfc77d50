"""Keys as a test types them."""

from typing import Any


class Typed:
    """Keys as a test types them, a list for each step."""

    shows = False

    def __init__(self, *steps: list[str]) -> None:
        self.steps, self.shown, self.pictures = [*steps], list[str](), list[Any]()

    def pressed(self) -> list[str]:
        return self.steps.pop(0) if self.steps else []

    def held(self) -> list[str]:
        return ["q"]

    def axes(self) -> dict[int, float]:
        return {}

    def show(self, picture: Any, words: str) -> None:
        self.shown.append(words)
        self.pictures.append(picture)

    def close(self) -> None: ...
