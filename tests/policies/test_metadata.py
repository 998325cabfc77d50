"""What an exported graph carries: the contract of a robot's program, and the policy to the bit.

Torch's exporter takes seconds to import, so whatever it alone can do is tested here; other tests have `quick_graph`.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from repolicy import load_policy
from repolicy.cli import main as cli
from repolicy.cli.environment_info import environment_info
from repolicy.errors import FileError, UsageError
from repolicy.policies.distributions import ActionSpace
from repolicy.policies.export import export, onnx_graph
from repolicy.policies.file import save_policy
from repolicy.policies.metadata import ABOUT, POLICY, deployment_info, fingerprint
from repolicy.policies.modulated import ConditionedPolicy
from repolicy.policies.normalizer import moment_sums
from repolicy.policies.policy import Policy, PolicySpec, make_policy
from repolicy.prepare import flows
from repolicy.prepare.flows import Flow
from repolicy.prepare.generative import standard_normal
from repolicy.priors.decoders import export_composed, load_decoder
from repolicy.ranges import Dial
from repolicy.readers.reading import Options
from repolicy.readers.recognize import PolicyFile

BOX = ActionSpace("continuous", (2,), (-1.0, -3.0), (1.0, 2.0))
PLAIN = PolicySpec(5, BOX, hidden=(8,))
HALVED = replace(PLAIN, family="state_squashed", activation="relu")  # half of its last layer is the std, in no graph
LARGEST = float(np.finfo(np.float32).max)  # for an infinite bound, which JSON cannot write
DIALS = [Dial("omega", 0.1, 10.0), Dial("energy", 0.0, 2.0, "linear")]
FORMATS = {"onnx": "policy.onnx", "torchscript": "policy.pt"}
IN_EACH_FORMAT = pytest.mark.parametrize("format", FORMATS)
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.load` is:DeprecationWarning")


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the policy of `dialed()` and a plain one, exported once in each format."""
    folder = tmp_path_factory.mktemp("graphs")
    card, prior = {"request": {"addons": ["hind_leg=10"]}}, make_policy(PLAIN, 1)
    save_policy(folder / "mine.safetensors", dialed(), card, prior)
    for format, name in FORMATS.items():
        cli.main(["export", str(folder / "mine.safetensors"), "--out", str(folder / name)])
        export(plain(), folder / f"plain-{name}", format)
    return folder


def plain() -> Policy:
    """Its normalizer has seen observations that are neither centred nor scaled."""
    policy = make_policy(HALVED, 5)
    policy.normalizer.update(moment_sums(np.random.default_rng(0).normal(7.0, 3.0, (1000, 5))))
    return policy


def dialed() -> ConditionedPolicy:
    torch.manual_seed(3)
    policy = ConditionedPolicy.from_prior(make_policy(PLAIN, 1), DIALS)
    with torch.no_grad():
        policy.network.film.normal_(0.0, 0.3)
    return policy


def observations(count: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, 5)).astype(np.float32)


@IN_EACH_FORMAT
def test_an_exported_graph_is_read_back_to_the_bit_with_its_dials(format: Any, graphs: Path) -> None:
    for policy, name in ((plain(), f"plain-{FORMATS[format]}"), (dialed(), FORMATS[format])):
        again = load_policy(graphs / name)
        assert (type(again), again.spec) == (type(policy), policy.spec)
        assert fingerprint(again) == fingerprint(policy) != fingerprint(make_policy(policy.spec, 6))


def acted(path: Path, seen: np.ndarray, dials: np.ndarray) -> np.ndarray:
    """By the programs that a robot has."""
    if path.suffix == ".pt":
        return np.asarray(torch.jit.load(path)(torch.from_numpy(seen), torch.from_numpy(dials)).numpy())
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["actions"], {"observations": seen, "dials": dials})[0])


@IN_EACH_FORMAT
def test_dials_that_are_off_their_range_are_kept_within_it(format: Any, graphs: Path) -> None:
    policy, path = dialed(), graphs / FORMATS[format]
    inf, nan = float("inf"), float("nan")
    sent = [(0.1, 0.0), (10.0, 2.0), (0.01, -1.0), (11.0, 3.0), (-inf, -inf), (inf, inf), (0.0, -0.0), (nan, nan)]
    meant = [(0.1, 0.0), (10.0, 2.0), (0.1, 0.0), (10.0, 2.0), (0.1, 0.0), (10.0, 2.0), (0.1, 0.0), (10.0, 0.0)]
    seen = np.repeat(observations(1), len(sent), 0)
    found = acted(path, seen, np.array(sent, np.float32))
    np.testing.assert_array_equal(found, acted(path, seen, np.array(meant, np.float32)))
    wanted = [policy.at(omega=one, energy=two)(torch.from_numpy(seen[:1])).mode().numpy()[0] for one, two in meant]
    np.testing.assert_allclose(found, np.array(wanted), rtol=1e-5, atol=1e-5)


def test_a_flow_and_a_policy_that_chooses_its_noise_are_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "EULER_STEPS", 2)
    seen, noise, file = torch.randn(50, 1), torch.randn(50, 6), tmp_path / "flow.onnx"
    flow = Flow(seen, torch.randn(50, 6), (8,)).eval().requires_grad_(False)
    file.write_bytes(onnx_graph(flow, (seen[:2], noise[:2])))
    np.testing.assert_allclose(load_decoder(file, 6, 3)(seen.numpy(), noise.numpy()), flow(seen, noise), atol=1e-5)
    assert export_composed(standard_normal(1, 6), file, 6, 3, tmp_path / "whole.onnx") < 1e-5


def carried(path: Path) -> dict[str, Any]:
    """As a robot's program reads it."""
    if path.suffix == ".pt":
        extra = {ABOUT: ""}
        torch.jit.load(path, _extra_files=extra)
        return dict(json.loads(extra[ABOUT]))
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(json.loads(session.get_modelmeta().custom_metadata_map[ABOUT]))


@IN_EACH_FORMAT
def test_a_robots_program_reads_the_contract(format: Any, graphs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy, prior, path = dialed(), make_policy(PLAIN, 1), graphs / FORMATS[format]
    found = carried(path)
    assert found["dials"] == [
        {"name": "omega", "low": 0.1, "high": 10.0, "scale": "log", "if_nan": 10.0},
        {"name": "energy", "low": 0.0, "high": 2.0, "scale": "linear", "if_nan": 0.0},
    ]
    assert (found["observations"], found["addons"]) == ({"size": 5}, ["hind_leg=10"])
    assert (found["actions"]["low"], found["actions"]["high"]) == ([-1.0, -3.0], [1.0, 2.0])
    assert (found["policy"], found["prior"]) == (fingerprint(policy), fingerprint(prior))
    cli.main(["inspect", str(path), "--json"])
    assert json.loads(capsys.readouterr().out)["carries"] == found


@pytest.mark.parametrize(
    ("sizes", "first", "low", "high"),
    [((4,), (1.0,), [1], [4]), ((3, 2), (), [0, 0], [2, 1]), ((2,), (-4.0,), [-4], [-3])],
)
def test_choices_have_a_first_and_a_last(sizes: Any, first: Any, low: list[int], high: list[int]) -> None:
    policy = Policy(PolicySpec(5, ActionSpace("discrete", sizes, first), "categorical", hidden=(4,)))
    found = deployment_info(policy, None, {}, {})["actions"]
    assert (list(found["low"]), list(found["high"])) == (low, high)


def test_a_bound_is_told_also_beside_one_that_is_infinite() -> None:
    for low, high, told in (
        ((-1.0, -math.inf), (math.inf, 2.0), ([-1.0, -LARGEST], [LARGEST, 2.0])),
        ((-math.inf, -math.inf), (math.inf, math.inf), ([], [])),
    ):
        policy = Policy(PolicySpec(5, ActionSpace("continuous", (2,), low, high), hidden=(4,)))
        found = json.loads(json.dumps(deployment_info(policy, None, {}, {})["actions"], allow_nan=False))
        assert (found["low"], found["high"]) == told


def test_names_units_and_the_control_period_of_a_robot(tmp_path: Path) -> None:
    pytest.importorskip("envpool")

    def exported(env: str, size: int, width: int, *words: str) -> dict[str, Any]:
        policy, path = Policy(PolicySpec(size, ActionSpace("continuous", (width,)), hidden=(4,))), tmp_path / "mine.pt"
        save_policy(path.with_suffix(".safetensors"), policy, {} if words else {"request": {"env": env}})
        cli.main(["export", str(path.with_suffix(".safetensors")), "--out", str(path), *words])
        return carried(path)

    cheetah, ant = exported("HalfCheetah-v4", 17, 6), exported("Ant-v5", 105, 8)
    dog = exported("Go1JoystickFlatTerrain-v1", 48, 12)
    assert cheetah["actions"]["names"] == ["bthigh", "bshin", "bfoot", "fthigh", "fshin", "ffoot"]
    assert [cheetah["observations"]["names"][index] for index in (2, 8)] == ["position of bthigh", "velocity of rootx"]
    units = cheetah["observations"]["units"]
    assert [units[index] for index in (0, 1, 8, 9, 10)] == ["m", "rad", "m/s", "m/s", "rad/s"]
    assert ant["actions"]["names"][:2] == ["hip_4", "ankle_4"]  # motors are in another order than joints
    assert [ant["observations"]["names"][index] for index in (0, 4, 13, 27)] == [
        *("position of root.z", "position of root.qz", "velocity of root.x", "cfrc_ext[0]"),
    ]
    assert (dog["observations"]["names"][47], dog["control_period"], cheetah["control_period"]) == (
        *("state[47]", 0.02, 0.05),
    )
    assert (ant["actions"]["low"], dog["actions"]["high"]) == ([-1.0] * 8, [1.0] * 12)
    names = exported("", 24, 6, "--env", "WalkerWalk-v1")["observations"]["names"]
    assert [names[index] for index in (0, 13, 14, 15, 23)] == [  # a Dict's parts, in the order in which they are taken
        *("orientations[0]", "orientations[13]", "height[0]", "velocity[0]", "velocity[8]"),
    ]


REPEATED = """
import gymnasium

class Repeated(gymnasium.Wrapper):
    def step(self, action):
        self.env.step(action)
        return self.env.step(action)

def hop():
    return Repeated(gymnasium.make("Hopper-v5"))
"""


def test_a_robot_of_code_tells_how_long_it_repeats_an_action(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "robots.py").write_text(REPEATED)
    policy, path = Policy(PolicySpec(11, ActionSpace("continuous", (3,)), hidden=(4,))), tmp_path / "mine.safetensors"
    save_policy(path, policy, {"request": {"env": f"{tmp_path}/robots.py:hop"}})
    cli.main(["export", str(path), "--out", str(tmp_path / "mine.pt")])
    assert "control_period" not in carried(tmp_path / "mine.pt")
    assert "without names, ranges and control period: " in capsys.readouterr().err
    cli.main(["export", str(path), "--out", str(tmp_path / "mine.pt"), "--trust"])
    found = carried(tmp_path / "mine.pt")
    assert (found["control_period"], found["actions"]["names"][2]) == (0.016, "foot_joint")  # two steps of 0.008 s


def test_an_environment_tells_the_range_that_a_policy_does_not() -> None:
    told = {"env": "Mine-v0", "actions": {"low": (-2.0, -math.inf), "high": (3.0, 4.0)}}
    for actions, low, high in (
        (BOX, [-1.0, -3.0], [1.0, 2.0]),
        (ActionSpace("continuous", (2,)), [-2.0, -LARGEST], [3.0, 4.0]),
    ):
        found = deployment_info(Policy(replace(PLAIN, actions=actions)), None, {}, told)["actions"]
        assert (found["low"], found["high"]) == (low, high)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"actions": {"low": (-2.0,), "high": (3.0,)}}, "Hopper-v4 has 1 actions, and the policy 2"),
        ({"observations": {"names": ["z"] * 11}}, "Hopper-v4 has 11 observations, and the policy 5: name its own with"),
    ],
)
def test_another_environment_is_refused(told: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        deployment_info(make_policy(PLAIN, 0), None, {}, {"env": "Hopper-v4"} | told)


def test_an_option_that_envpool_alone_has_is_taken_by_its_contract() -> None:
    pytest.importorskip("envpool")
    assert environment_info("Hopper-v4?healthy_z_min=0.5").keys() == {"env", "actions"}
    assert "observations" in environment_info("Hopper-v4?healthy_z_range=[0.5,9]")


def test_a_graph_that_was_changed_is_read_as_it_is_now(graphs: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    policy, path = plain(), tmp_path / "policy.onnx"
    model = onnx.load(graphs / "plain-policy.onnx")
    weights = next(each for each in model.graph.initializer if list(each.dims) == [8, 5])
    weights.CopyFrom(onnx.numpy_helper.from_array(2.0 * onnx.numpy_helper.to_array(weights), weights.name))
    onnx.save(model, path)
    described = PolicyFile(path).describe(Options())
    np.testing.assert_array_equal(described.actor.hidden[0].linear.weight, 2.0 * policy.network.weights[0].detach())
    assert "no more the one that Repolicy exported" in described.notes[-1]


@pytest.mark.parametrize(
    ("key", "text", "sentence"),
    [
        (ABOUT, "[", "is damaged: its repolicy.json is damaged"),
        (ABOUT, "{}", "its repolicy.json is not whole: it has no 'format'"),
        (ABOUT, '{"format": 2}', "has format 2; this version reads up to 1: upgrade"),
        (POLICY, "µ", "its policy.safetensors is damaged"),
    ],
)
def test_damage_is_one_sentence(key: str, text: str, sentence: str, graphs: Path, tmp_path: Path) -> None:
    onnx, path = pytest.importorskip("onnx"), tmp_path / "policy.onnx"
    model = onnx.load(graphs / "plain-policy.onnx")
    next(entry for entry in model.metadata_props if entry.key == key).value = text
    onnx.save(model, path)
    with pytest.raises(FileError, match=sentence):
        load_policy(path)


def test_a_byte_of_torchscript_that_changed_is_one_sentence(graphs: Path, tmp_path: Path) -> None:
    path, content = tmp_path / "policy.pt", bytearray((graphs / "plain-policy.pt").read_bytes())
    content[content.index(POLICY.encode()) + 1000] ^= 1
    path.write_bytes(content)
    with pytest.raises(FileError, match="policy.pt is damaged: it cannot be unpacked .*CRC"):
        load_policy(path)


def test_a_file_that_was_cut_is_told_once(graphs: Path, tmp_path: Path) -> None:
    path = tmp_path / "policy.onnx"
    path.write_bytes((graphs / "plain-policy.onnx").read_bytes()[:-1000])
    with pytest.raises(FileError) as told:
        load_policy(path)
    assert str(told.value).count(str(path)) == 1


def test_no_path_of_this_machine_is_in_the_file(graphs: Path) -> None:
    for name in FORMATS.values():
        assert str(Path(__file__).parents[2]).encode() not in (graphs / f"plain-{name}").read_bytes()
