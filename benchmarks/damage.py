"""What can happen to a file: bytes that change, forged values, something else in its place."""

import contextlib
import copy
import json
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

from repolicy.policies.storage import read, write

ODD: list[Any] = [
    None, True, 0, -1, 3, 1e400, float("nan"), 10**400, 10**12, 1e-320, "", "a", "\x1b[2J\x07", "\ud800", "é" * 3000,
    "os:system?command=touch owned", "owned.py:f", "../x", "Pendulum-v1?g=1", [], {}, [[]], {"a": {"b": {}}}, [1] * 999,
]  # fmt: skip


# Of these, names are made that a file could give: with every separator, and what ships, what does not, and what would.
SEPARATORS = ["?", "?observe=", "?observe=", ":", "#", "=", "&", "(", ")", "..", "/", "@", ",", " "]
PARTS = [
    "Hopper-v4", "height", "hind_leg", "joint=bshin", "hind_leg(joint=bshin)=2", "observe", "observe=y.py", "theirs/x",
    "y.py", "y.py:f", "bait", "f", "2", "", "repolicy.rql.tasks", "CartPole", "session", "hf:/", "module",
]  # fmt: skip


def a_name(random_: random.Random) -> str:
    """Parts with separators between them, often such that a function of a file is named in the end."""
    name = random_.choice(PARTS)
    for _ in range(random_.choice([0, 1, 1, 2, 3, 6])):
        name += random_.choice(SEPARATORS) + random_.choice(PARTS)
    return name + random_.choice(["", ".py:f", ".py:f", ".py:f=2", ":f"])


def lay(name: str, content: str) -> set[str]:
    """Write this Python into every file of this folder that a part of the name could mean. Returns their paths."""
    words, laid = re.findall(r"\w+", name), set()
    cuts = [match.span() for match in re.finditer("|".join(map(re.escape, SEPARATORS)), name)]
    starts, ends = [0, *(end for _, end in cuts)], [*(start for start, _ in cuts), len(name)]
    parts = {name[start:end] for start in starts for end in ends if start < end}
    for part in sorted(parts | {f"{each}.py" for each in [*parts, *words]}, key=lambda part: -part.count("/")):
        path = Path(part)
        if ".." in path.parts or path.is_absolute():
            continue
        with contextlib.suppress(OSError):  # a folder has that name, or a file has that of its folder
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            laid.add(os.path.realpath(path))
    return laid


def rename(random_: random.Random, path: Path, name: str) -> None:
    """A file that is whole but for one text, which becomes this name; more often where a name is meant to be."""
    if path.suffix in BINARY:
        return BINARY[path.suffix](random_, path, name)
    with edited(path, random_) as story:
        texts = [(way, value) for way, value in fields(story) if isinstance(value, str)]
        names = [(way, value) for way, value in texts if way[-1] == "env" or "addons" in way]
        if places := random_.choice([names, names, texts]) or texts:
            put(story, random_.choice(places)[0], name)


@contextlib.contextmanager
def edited(path: Path, random_: random.Random) -> Iterator[Any]:
    """What a file tells in JSON, or one of its lines; whatever is changed in it is written back."""
    if path.suffix == ".safetensors":
        tensors, story = read(path)
        yield story
        write(path, story.pop("kind"), tensors, story)
        return
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    index = random_.randrange(len(lines))
    story = json.loads(lines[index])
    yield story
    lines[index] = json.dumps(story)
    path.write_text("\n".join(lines) + "\n")


Way = tuple[Any, ...]  # the keys that lead to a field


def fields(story: Any, way: Way = ()) -> list[tuple[Way, Any]]:
    """Every field, at any depth; an object or a list counts as one where nothing is in it."""
    inside = story.items() if isinstance(story, dict) else enumerate(story if isinstance(story, list) else [])
    return [field for key, value in inside for field in fields(value, (*way, key))] or [(way, story)]


def put(story: Any, way: Way, value: Any) -> None:
    """Another value in a field; into an empty list as its only entry."""
    for key in way[:-1]:
        story = story[key]
    story[way[-1]] = [value] if isinstance(story[way[-1]], list) else value


def spoil(random_: random.Random, path: Path) -> None:
    """Some bytes of a file change, go or come."""
    content = bytearray(path.read_bytes())
    for _ in range(random_.choice([1, 1, 3, 30])):
        start = random_.randrange(len(content) + 1)
        stop = min(len(content), start + random_.choice([0, 1, 8, 500, 10**6]))
        some, other = random_.randbytes(max(1, min(stop - start, 100))), bytes(content[start:stop]) * 2
        content[start:stop] = random_.choice([b"", bytes(stop - start), some, other])[: 10**6]
    path.write_bytes(content)


def forge(random_: random.Random, path: Path) -> None:
    """A file that is whole but for one value, of another type, size or sign."""
    if path.suffix in BINARY:
        return BINARY[path.suffix](random_, path, "")
    if path.suffix != ".safetensors":
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        index = random_.randrange(len(lines))
        lines[index] = json.dumps(changed(random_, json.loads(lines[index])))
        path.write_text("\n".join(lines) + "\n")
        return None
    tensors, story = read(path)
    if random_.random() < 0.3:
        tensors = changed_tensors(random_, tensors)
    else:
        story = changed(random_, story)
    story = story if isinstance(story, dict) else {}
    with contextlib.suppress(UnicodeError, ValueError):  # not even a forger can write this one
        write(path, story.pop("kind", "policy"), tensors, story)


def forge_arrays(random_: random.Random, path: Path, name: str) -> None:
    """Demonstrations of other types, sizes and numbers, or so many of one number that they unpack out of proportion."""
    arrays = dict(np.load(path))
    key = name or random_.choice(sorted(arrays))
    array = arrays.get(key, arrays["actions"])
    arrays[key] = random_.choice([
        array[:0], array[:1], array[0], array * np.nan, array.astype("c8"), array.astype("S"), array.astype(object),
        array[..., None], array.astype(int), -array.astype(int), np.zeros((10**6, 30)), np.array(name or "a"),
    ])  # fmt: skip
    with contextlib.suppress(OSError):  # no zip has an entry of that name
        random_.choice([np.savez, np.savez_compressed])(path, **arrays)


def forge_graph(random_: random.Random, path: Path, name: str) -> None:
    """A graph that names a file by way of another folder for weights: its own, or those of a loop without an end."""
    make, model = onnx.helper, onnx.load(path)
    weights = random_.choice(model.graph.initializer)
    if random_.random() < 0.5:  # the loop is not run, as episodes are not: its weights are read all the same
        kinds = {"c": onnx.TensorProto.BOOL, "i": onnx.TensorProto.INT64, "d": onnx.TensorProto.BOOL}
        c, i, d = (make.make_tensor_value_info(key, kind, []) for key, kind in kinds.items())
        body = make.make_graph([make.make_node("Identity", ["c"], ["d"])], "body", [i, c], [d], [weights])
        model.graph.node.append(make.make_node("Loop", ["", "c0"], [], body=body))
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "c0"))
        weights = model.graph.node[-1].attribute[0].g.initializer[0]
    weights.ClearField("raw_data")
    weights.data_type = random_.choice([1, 2, 10, 99])
    weights.data_location = onnx.TensorProto.EXTERNAL
    place = f"../{Path.cwd().name}/{name or 'x'}"
    for key, value in {"location": place, "offset": random_.choice(["0", "-1", "9" * 20, "x"])}.items():
        weights.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())


BINARY: dict[str, Callable[[random.Random, Path, str], None]] = {".npz": forge_arrays, ".onnx": forge_graph}


def changed(random_: random.Random, story: Any) -> Any:
    """A copy with one node, anywhere, replaced, dropped or added."""
    story = copy.deepcopy(story)
    place, before = story, None
    while isinstance(place, dict | list) and place and (before is None or random_.random() < 0.8):
        key = random_.choice(list(place) if isinstance(place, dict) else range(len(place)))
        before, place = (place, key), place[key]
    if before is None:
        return random_.choice(ODD)
    holder, key = before
    action = random_.random()
    if action < 0.15:
        del holder[key]
    elif action < 0.25 and isinstance(holder, dict):
        holder[random_.choice(["a", "", "\x1b[2J", "env?"])] = random_.choice(ODD)
    else:
        holder[key] = random_.choice([*ODD, [place], {"a": place}, str(place)])
    return story


def changed_tensors(random_: random.Random, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    name = random_.choice(sorted(tensors))
    tensor = tensors[name]
    others: list[Callable[[], dict[str, Tensor]]] = [
        lambda: {}, lambda: {name: tensor.half()}, lambda: {name: tensor.int()}, lambda: {name: tensor.flatten()[:1]},
        lambda: {name: tensor[None]}, lambda: {name: tensor[..., :0] if tensor.ndim else tensor}, lambda: {"x": tensor},
        lambda: {name: tensor * float("nan")}, lambda: {name: tensor + 1}, lambda: {name: tensor.bool()},
        lambda: {name: tensor, "policy.x": tensor}, lambda: {name: tensor.to(torch.complex64)},
    ]  # fmt: skip
    return {key: value for key, value in tensors.items() if key != name} | random_.choice(others)()


def replace_by_something_else(random_: random.Random, path: Path) -> None:
    """A folder, a link to nowhere, a link to itself, nothing, text of another kind, deep nesting."""
    path.unlink()
    random_.choice([
        path.mkdir, lambda: path.symlink_to("nowhere"), lambda: path.symlink_to(path.name), lambda: None,
        lambda: path.write_bytes(b""), lambda: path.write_bytes(b"\xff\xfe\x00"), lambda: path.write_text("[" * 10**5),
        lambda: path.write_text('{"a":' * 10**5), lambda: path.write_text("null"), lambda: path.write_text("9" * 5000),
        lambda: path.write_bytes(random_.randbytes(1000)), lambda: path.symlink_to("/dev/zero"),
        lambda: os.mkfifo(path),
    ])()  # fmt: skip
