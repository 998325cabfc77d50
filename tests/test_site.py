"""The pages as a website: each is in the menu, and the reference has every name of the package."""

import importlib
import inspect
import re
from pathlib import Path

import repolicy

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_the_menu_has_every_page_once() -> None:
    menu = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2]
    assert sorted(re.findall(r"[\w-]+\.md", menu)) == sorted(page.name for page in DOCS.glob("*.md"))


def test_the_site_needs_no_network() -> None:
    """Material's plugin would take this script from a server of packages, and search from a disk would need it."""
    [script] = re.findall(r"polyfills: \[(.*)\]", (ROOT / "mkdocs.yml").read_text())
    assert (DOCS / script).is_file()


def test_the_reference_has_every_name() -> None:
    named = re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert {f"repolicy.{name}" for name in repolicy.__all__ if name != "__version__"} <= {*named}
    for name in named:
        module, _, attribute = name.rpartition(".")
        assert getattr(importlib.import_module(module), attribute).__doc__, name


def test_each_function_of_the_reference_tells_its_parameters() -> None:
    for name in repolicy.__all__:
        if inspect.isfunction(function := getattr(repolicy, name)):
            told = re.findall(r"^        \**(\w+): ", function.__doc__ or "", re.MULTILINE)
            wanted = list(inspect.signature(function).parameters)
            assert told == wanted or (not told and len(wanted) <= 5), name
