"""What the tests of language models share: a prior that trains in seconds."""

import gc
import os

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

# Warnings of TRL and transformers about each other, by their words; any other warning is an error.
OTHERS_WARNINGS = ["ignore:.*gradient_checkpointing.* is deprecated and will be removed in v6:FutureWarning"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            for warning in OTHERS_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(scope="session", autouse=True)
def _asked_once() -> None:
    """Remember what Hugging Face's libraries ask again and again, which takes longer than a tiny model's steps.

    Accelerate reads PEFT's whole description to see whether it is there; datasets has the source of whatever maps rows
    taken apart, to know the rows again.
    """
    with suppress(ImportError):
        from accelerate.utils import imports
        from datasets import arrow_dataset, fingerprint

        imports._is_package_available = cache(imports._is_package_available)
        for module in (arrow_dataset, fingerprint):
            module.update_fingerprint = lambda *_: fingerprint.generate_random_fingerprint()


@pytest.fixture(scope="session")
def toy() -> Any:
    from experiments.llm.toy import Toy

    return Toy(letters="abe", length=3)


@pytest.fixture(scope="session")
def prior(toy: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model that speaks the toy's language."""
    pytest.importorskip("trl", reason="the extra `llm` is not installed")
    from experiments.llm.toy import make_prior

    folder = tmp_path_factory.mktemp("prior")
    make_prior(toy, folder, steps=200, hidden=32, layers=1)
    gc.collect()
    gc.freeze()  # what was imported since the tests were collected
    return folder


@pytest.fixture
def build(prior: Path, settings: dict[str, Any]) -> Callable[..., Any]:
    """What makes a trainer of a kind, on a fresh model: `tiny_language.trainer_of`."""
    from tiny_language import trainer_of

    return partial(trainer_of, prior, settings)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """Trainer settings for a short quiet run."""
    quiet = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    plain = dict.fromkeys(("bf16", "gradient_checkpointing", "dataloader_pin_memory"), False)
    return quiet | plain | {"output_dir": str(tmp_path / "run"), "use_cpu": True, "learning_rate": 1e-3, "seed": 5}
