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


MANUAL = [page for page in DOCS.glob("*.md") if not page.name.startswith(("results-", "deviations"))]
RESULTS = [*DOCS.glob("results-*.md"), DOCS / "deviations.md"]
TABLE = re.compile(r"<!-- table: \w+ -->\n.*?<!-- end -->", re.DOTALL)


def test_no_figure_of_a_results_page_stands_in_a_table_that_was_typed() -> None:
    """What stands between the marks is compared with `results/` by tests/test_docs.py."""
    for page in RESULTS:
        assert not re.findall(
            r"^\|.*\|\s*[−-]?\d[\d.,]*( ±[^|]*)?\s*\|.*$", TABLE.sub("", page.read_text()), re.MULTILINE
        ), page


def words(pages: list[Path]) -> int:
    """The bars of tables are not words."""
    return len([word for page in pages for word in page.read_text().split() if word.strip("|-")])


def test_the_pages_stay_few_and_short() -> None:
    assert len(MANUAL) <= 15
    assert words(MANUAL) <= 20_000
    assert words(RESULTS) <= 16_000


def test_the_site_needs_no_network() -> None:
    """Material's plugin would take this script from a server of packages, and search from a disk would need it."""
    [script] = re.findall(r"polyfills: \[(.*)\]", (ROOT / "mkdocs.yml").read_text())
    assert (DOCS / script).is_file()


def test_the_site_follows_the_colors_of_the_system() -> None:
    """Without this first row Material keeps those of the first visit."""
    assert re.findall(r'media: "(.*)"', (ROOT / "mkdocs.yml").read_text())[0] == "(prefers-color-scheme)"


def test_links_lead_to_headings_on_github_too() -> None:
    """There an anchor keeps letters like ω, which mkdocs leaves out. What mkdocs checks is not checked again."""
    for page in [ROOT / "README.md", *DOCS.glob("*.md")]:
        for file, anchor in re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", page.read_text()):
            headings = re.findall(r"^#+ (.*)$", (page.parent / file if file else page).read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-")) for heading in headings}
            assert anchor in anchors, f"{page.name}: {file}#{anchor}"


def test_the_reference_has_every_name() -> None:
    named = re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert {f"repolicy.{name}" for name in repolicy.__all__} <= {*named}
    for name in named:
        module, _, attribute = name.rpartition(".")
        assert getattr(importlib.import_module(module), attribute).__doc__, name


def test_each_function_of_the_reference_tells_its_parameters() -> None:
    for name in repolicy.__all__:
        if inspect.isfunction(function := getattr(repolicy, name)):
            told = re.findall(r"^    \**(\w+): ", inspect.getdoc(function) or "", re.MULTILINE)
            wanted = list(inspect.signature(function).parameters)
            assert told == wanted or (not told and len(wanted) <= 5), name
