"""Keys of a terminal, a window and a gamepad, and the actions that they stand for."""

import ctypes.util
import json
import os
import pty
import shutil
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from typed_keys import Typed

from repolicy.errors import RepolicyError
from repolicy.wishes.keys import TerminalKeys, WindowKeys
from repolicy.wishes.takeover import by_keys


def test_keys_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        keys = TerminalKeys()
        os.write(ours, b" q\n\x7f")
        time.sleep(0.05)
        assert keys.pressed() == ["space", "q", "enter", "backspace"]
        assert "q" in keys.held()
        assert keys.pressed() == []
        os.write(ours, b"\x1b[A\x1bOP\x1b[3~w\x1bx\x1b")  # Up, F1, Delete, w, Alt with x, Escape
        time.sleep(0.05)
        assert keys.pressed() == ["w", "escape"]
        keys.close()
    os.close(ours)


def test_a_key_of_a_terminal_is_held_until_its_keyboard_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        keys, now, held = TerminalKeys(), 0.0, list[bool]()
        monkeypatch.setattr("time.monotonic", lambda: now)
        for tenth in range(14):
            now = tenth / 10
            if tenth == 0 or 6 <= tenth < 9:  # pressed for 0.9 seconds, as a keyboard sends it
                os.write(ours, b"q")
                time.sleep(0.02)
            keys.pressed()
            held.append("q" in keys.held())
        keys.close()
    os.close(ours)
    assert held == [True] * 11 + [False] * 3


def test_keys_of_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    game = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    keys = WindowKeys(rate=1000)
    for key in (game.K_SPACE, game.K_RETURN, game.K_BACKSPACE, game.K_ESCAPE, game.K_q):
        game.event.post(game.event.Event(game.KEYDOWN, key=key))
    assert [key for key in keys.pressed() if key] == ["space", "enter", "backspace", "escape", "q"]
    assert keys.held() == set()
    keys.show(np.zeros((20, 30, 3), np.uint8), "the policy acts")
    keys.close()


def test_a_window_gets_the_keys_of_a_keyboard() -> None:
    """As X's own test extension strokes them, on a display that nobody sees."""
    pytest.importorskip("pygame")
    if not (shutil.which("Xvfb") and ctypes.util.find_library("Xtst")):
        pytest.skip("needs Debian's packages xvfb and libxtst6")
    reads, writes = os.pipe()
    words = ["Xvfb", "-displayfd", str(writes), "-screen", "0", "640x480x24", "-nolisten", "tcp"]
    with subprocess.Popen(words, pass_fds=(writes,), stderr=subprocess.DEVNULL) as server:
        os.close(writes)
        with os.fdopen(reads) as told:  # the server writes number and line's end apart, and dies of a pipe that closes
            seen = {"DISPLAY": f":{told.readline().strip()}", "SDL_VIDEODRIVER": "x11"}
        program = [sys.executable, str(Path(__file__).with_name("real_keys.py"))]
        done = subprocess.run(program, env=os.environ | seen, capture_output=True, text=True, check=False, timeout=120)
        server.terminate()
    assert json.loads(done.stdout.splitlines()[-1]) == [["enter", "backspace", "escape", "q"], ["q"]], done.stderr


def test_a_window_gets_a_gamepad(monkeypatch: pytest.MonkeyPatch) -> None:
    """SDL's own virtual joystick, whose third axis rests at its lowest, as triggers do."""
    pygame = pytest.importorskip("pygame")
    libraries = [*Path(pygame.__file__).parents[1].glob("pygame*.libs/libSDL2-2*")]
    if not libraries:
        pytest.skip("needs pygame's wheel, which has SDL in a file")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    keys, sdl = WindowKeys(rate=1000), ctypes.CDLL(str(libraries[0]))
    sdl.SDL_JoystickOpen.restype = ctypes.c_void_p
    place = sdl.SDL_JoystickAttachVirtual(1, 3, 8, 0)
    pad = ctypes.c_void_p(sdl.SDL_JoystickOpen(place))

    def lies(*axes: float) -> None:
        for axis, value in enumerate(axes):
            sdl.SDL_JoystickSetVirtualAxis(pad, axis, ctypes.c_int16(int(value * 32768)))

    lies(0, 0, -1)
    sdl.SDL_JoystickUpdate()
    assert keys.pressed() == []
    assert keys.axes() == {}
    lies(-1, 0.5, -1)
    for button in range(6):
        sdl.SDL_JoystickSetVirtualButton(pad, button, ctypes.c_uint8(1))
    assert keys.pressed() == ["space", "enter", "backspace", "escape"]
    assert keys.held() == {"0", "1"}
    assert keys.axes() == {0: -1.0, 1: 0.5}
    box = gymnasium.spaces.Box(np.full(3, -2.0), np.full(3, 2.0), dtype=np.float64)
    assert by_keys(keys, box)(np.zeros(1), np.full(3, 0.25)).tolist() == [-2.0, 1.0, 0.25]
    assert by_keys(keys, gymnasium.spaces.Discrete(2))(np.zeros(1), np.array(0)) in (0, 1)
    sdl.SDL_JoystickDetachVirtual(place)
    assert keys.pressed() == []
    assert (keys.axes(), keys.held()) == ({}, set())
    keys.close()


def test_without_a_display_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    game = pytest.importorskip("pygame")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(game.display, "get_driver", lambda: "offscreen")  # what SDL takes then
    with pytest.raises(RepolicyError, match="there is no display: add --keys terminal"):
        WindowKeys()
    game.display.quit()


def test_a_person_acts_by_keys() -> None:
    box = gymnasium.spaces.Box(np.array([-1.0, -2.0]), np.array([1.0, 3.0]), dtype=np.float64)
    assert by_keys(Typed(), box)(np.zeros(1), np.array([0.5, 0.5])).tolist() == [1.0, 0.5]
    keys = Typed()
    for space in (gymnasium.spaces.Box(-np.inf, 1.0, (1,)), gymnasium.spaces.MultiBinary(2)):
        with pytest.raises(RepolicyError, match="cannot be given by keys"):
            by_keys(Typed(), space)
    keys.held = lambda: {"s", "2"}
    assert by_keys(keys, box)(np.zeros(1), np.array([0.5, 0.5])).tolist() == [0.5, -2.0]
    choices = gymnasium.spaces.Discrete(3)
    assert by_keys(keys, choices)(np.zeros(1), np.array(0)) == 2
