"""What an installation weighs on the disk: its largest packages, and what each extra adds. Run it in a full one.

python -m benchmarks.weigh
"""

from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement

EXTRAS = ("engine", "sb3", "rsl-rl", "llm", "onnx", "ray", "wandb", "hub", "docs", "dev")


def installed_with(name: str, extras: frozenset[str] = frozenset(), seen: set[str] | None = None) -> set[str]:
    """The package and whatever it needs here, by name; an installed package alone counts."""
    seen = set() if seen is None else seen
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return seen
    seen.add(found.name.lower().replace("_", "-"))
    for text in found.requires or []:
        needed = Requirement(text)
        wanted = needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras))
        if wanted and (needed.extras or needed.name.lower().replace("_", "-") not in seen):
            installed_with(needed.name, frozenset(needed.extras), seen)
    return seen


def megabytes(name: str) -> float:
    """Of the package's own files."""
    files = distribution(name).files or []
    return sum(path.stat().st_size for path in (file.locate() for file in files) if path.is_file()) / 1e6


def missing(extra: str) -> list[str]:
    """What the extra asks for and is not installed."""
    absent = []
    for needed in map(Requirement, distribution("repolicy").requires or []):
        asked = [needed.marker is not None and needed.marker.evaluate({"extra": each}) for each in (extra, "")]
        if asked == [True, False]:
            try:
                distribution(needed.name)
            except PackageNotFoundError:
                absent.append(needed.name)
    return absent


def main() -> None:
    base = installed_with("repolicy")
    sizes = {name: megabytes(name) for name in base}
    print(f"repolicy and what it needs: {sum(sizes.values()):,.0f} MB, {len(base)} packages")
    for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:9]:
        print(f"  {name:42s} {size:6,.0f} MB")
    for extra in EXTRAS:
        more = installed_with("repolicy", frozenset([extra])) - base
        said = f"without {', '.join(missing(extra))}, not installed here" if missing(extra) else ""
        print(f"extra {extra:8s} {sum(map(megabytes, more)):6,.0f} MB, {len(more)} packages {said}")


if __name__ == "__main__":
    main()
