"""Not a test: the toy's add-on reward, as a file that a person would name."""


def addon(completions: list[str], **_: object) -> list[float]:
    return [min(text.count("e"), 2) / 2 for text in completions]
