"""The names of environments: ids, options behind them, and what is refused."""

import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tiny_envs import tiny

from repolicy.envs import names
from repolicy.envs.batches import RESERVED_OPTIONS
from repolicy.envs.making import check_observed_alike, evaluation_backend, make_envs
from repolicy.envs.names import envpool_names, parse_env_name, with_decoder
from repolicy.errors import UsageError

envpool = pytest.importorskip("envpool")


def test_without_mujoco_its_robots_name_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"'Hopper-v4' needs MuJoCo, .*: pip install 'repolicy\[engine\]'$"):
        make_envs("Hopper-v4", 1, 0, "gymnasium")
    make_envs("CartPole-v1", 1, 0, "gymnasium").close()


def test_an_environment_may_step_into_its_assets_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("assets").mkdir()
    code = "import os, gymnasium\ndef make():\n    os.chdir('assets')\n    return gymnasium.make('CartPole-v1')\n"
    Path("mine.py").write_text(code)
    for _ in range(2):
        make_envs("mine.py:make", 2, 0).close()
        names.make_one_env("mine.py:make").close()
    assert Path.cwd() == tmp_path


@pytest.mark.parametrize(
    ("name", "backend", "message"),
    [
        ("HalfChetah-v4", "auto", "no environment 'HalfChetah-v4'; did you mean HalfCheetah-v4"),
        ("Hopper-v44", "gymnasium", "no environment 'Hopper-v44'; did you mean .*Hopper-v4"),
        ("MyOwn-v8", "auto", r"no environment 'MyOwn-v8'.* \(an id that a module of yours registers is MODULE:ID\)$"),
        ("HalfChetah-v4", "envpool", "EnvPool has no 'HalfChetah-v4'; did you mean HalfCheetah-v4"),
        (tiny("Endles"), "auto", "has no 'Endles'; did you mean Endless"),
        (tiny("not_callable"), "auto", "is a int, and no function"),
        (tiny("CannotBeMade"), "auto", "cannot be made: ValueError: no licence"),
        ("nowhere.py:Env", "auto", "there is no file .*nowhere.py"),
        (
            tiny("OddObservations"),
            "auto",
            "has observations of kind Discrete; Repolicy takes Box, and Dict made of Box",
        ),
        (tiny("OddActions"), "auto", "has actions of kind Tuple.*; Repolicy takes Box of floats, Discrete, MultiD"),
        (tiny("WholeNumbers"), "auto", "has actions of kind Box.*int64.; Repolicy takes Box of floats"),
        (tiny("NothingToSee"), "auto", "NothingToSee' has an observation or an action without a number"),
        (tiny("NothingToChoose"), "auto", "NothingToChoose' has an observation or an action without a number"),
        ("HalfCheetah-v4?reset_noise=1", "auto", "has no option 'reset_noise' in EnvPool; did you mean reset_noise_s"),
        ("Pendulum-v1?g=8", "envpool", "no option 'g' in EnvPool; Gymnasium's may have it: --backend gymnasium"),
        ("HalfCheetah-v4?reset_noise_scale=much", "auto", "v4' does not take .*much.*: a value is of the wrong kind"),
        ("HalfCheetah-v4?noise", "auto", "'noise' is no option; write NAME.option=value"),
        ("Hopper-v4?a=1&b=2&a=1", "auto", "environment 'Hopper-v4.a=1&b=2&a=1' sets a more than once: leave one out"),
        ("Hopper-v4?frame_stack=0", "auto", "'Hopper-v4.frame_stack=0' cannot be made: ValueError: frame_stack must"),
        ("Hopper-v4?xml_file=foo.xml", "auto", "'Hopper-v4.xml_file=foo.xml' cannot be made: RuntimeError: .*foo.xml"),
        *((f"Hopper-v4?{key}=3", "auto", f"{key!r} is Repolicy's own to set: use --envs") for key in RESERVED_OPTIONS),
        ("InvertedPendulum-v5?foo=1", "gymnasium", "'InvertedPendulum-v5.foo=1' cannot be made: TypeError: .*foo"),
    ],
)
def test_what_cannot_be_made_is_one_sentence(name: str, backend: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_envs(name, 1, 0, backend)


def test_an_id_that_a_module_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = "import gymnasium\ngymnasium.register('MyOwn-v7', entry_point=lambda: gymnasium.make('Pendulum-v1'))\n"
    (tmp_path / "registers_my_own.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    assert make_envs("registers_my_own:MyOwn-v7", 1, 0).observation_size == 3


@pytest.mark.parametrize("backend", ["envpool", "gymnasium"])
def test_options_follow_the_name(backend: Any) -> None:
    plain, still = (
        make_envs(f"HalfCheetah-v4{options}", 8, 0, backend)
        for options in ("?", "?reset_noise_scale=0&forward_reward_weight=2")
    )
    assert plain.reset().std(0).min() > 0.01
    assert not still.reset().any()  # every joint and every speed at rest
    for batch in (plain, still):
        batch.close()


def test_an_option_that_gymnasium_alone_has_is_had_there() -> None:
    for name, backend in (
        ("Pendulum-v1?g=5", "gymnasium"),
        ("Hopper-v4?frame_skip=2", "envpool"),
        ("Hopper-v4?healthy_z_range=[0.5,9]", "gymnasium"),  # EnvPool's are healthy_z_min and healthy_z_max
        ("Hopper-v4?width=64", "gymnasium"),  # of the class that it is derived from
    ):
        with closing(make_envs(name, 1, 0)) as batch:
            assert batch.backend == backend
    with pytest.raises(UsageError, match="has no option 'healthy_z_mim' in EnvPool; did you mean"):
        make_envs("Hopper-v4?healthy_z_mim=0.5", 1, 0)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("Hopper-v4", "gymnasium"),
        ("Hopper-v4?healthy_z_min=0.5", "envpool"),
        ("PendulumSwingup-v1", "envpool"),
        ("InvertedPendulum-v5?nothing=1", "envpool"),
        (tiny("Endless"), "gymnasium"),
        (tiny("CannotBeMade"), "gymnasium"),
        ("Nowhere-v0", "envpool"),
    ],
)
def test_what_envpool_alone_can_make_is_evaluated_and_filmed_there(name: str, backend: Any) -> None:
    assert evaluation_backend(name, "envpool") == backend


def test_a_robot_that_the_two_libraries_show_differently_is_refused_where_both_are_needed(tmp_path: Path) -> None:
    for name in ("Humanoid-v4", "HumanoidStandup-v4", "Humanoid-v5?frame_skip=5"):
        with pytest.raises(UsageError, match="a take-over .* Gymnasium's Humanoid"):
            check_observed_alike(name, "a take-over")
    for name in ("Hopper-v4", f"{tmp_path}/mine.py:Humanoid-v4"):
        check_observed_alike(name, "a take-over")


def test_options_may_be_words_of_python() -> None:
    """Of which each text would be true."""
    options = parse_env_name("Hopper-v5?a=False&b=None&c=True&d=Falsehood&e=false").options
    assert options == {"a": False, "b": None, "c": True, "d": "Falsehood", "e": False}
    deep = "[" * 100_000  # too deep for JSON
    assert parse_env_name(f"Hopper-v4?a={deep}").options == {"a": deep}


def test_a_title_has_an_environments_own_options_and_no_decoders_path() -> None:
    own = "Hopper-v5?reset.high=0.2&exclude_current_positions_from_observation=False"
    assert parse_env_name(own).title == own
    assert parse_env_name(with_decoder(own, "/home/me/dec.pt", 2, 4, "12e4567")).title == own
    assert parse_env_name(with_decoder("Hopper-v5", "dec.pt", 2, 1)).title == "Hopper-v5"
    assert parse_env_name("mine.py:Noisy?noise=0.1").title == "mine.py:Noisy?noise=0.1"  # no decoder's
    with pytest.raises(UsageError, match="R&D/dec.pt: the path of a decoder may not hold &"):
        with_decoder("Hopper-v5", "R&D/dec.pt", 2, 1)


def test_whoever_asks_for_names_first_is_not_kept_in_memory() -> None:
    """EnvPool keeps an error of its import, and an error keeps the stack, such as gigabytes of environments."""
    envpool_names()
    kept = sys.modules["envpool.procgen"]._PROCGEN_IMPORT_ERROR
    assert kept is None or kept.__traceback__ is None
