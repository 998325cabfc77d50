"""Keys of a terminal, a window and a gamepad, and the actions that they stand for."""

import ctypes
import os
import pty
import sys
import termios
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from typed_keys import Typed

from repolicy.errors import RepolicyError
from repolicy.wishes.keys import TerminalKeys, WindowKeys
from repolicy.wishes.takeover import by_keys


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TerminalKeys, Callable[[bytes], object]]]:
    """Keys of a terminal, and what types on its keyboard."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        keys = TerminalKeys()
        yield keys, lambda typed: os.write(ours, typed) and time.sleep(0.05)
        keys.close()
    os.close(ours)


def test_keys_of_a_terminal(terminal: Any) -> None:
    keys, type_ = terminal
    type_(b" q\n\x7f")
    assert keys.pressed() == ["space", "q", "enter", "backspace"]
    assert keys.held()[1] == "q"
    assert keys.pressed() == []
    type_(b"aq")
    keys.pressed()
    assert keys.held()[-2:] == ["a", "q"]  # pressed again, it is the last
    type_(b"\x1b[A\x1bOP\x1b[3~w\x1bx\x1b")  # Up, F1, Delete, w, Alt with x, Escape
    assert keys.pressed() == ["w", "escape"]


def test_keys_of_a_terminal_come_at_once_after_the_shell_had_it(terminal: Any) -> None:
    """After Ctrl-Z and fg, the terminal waits for Enter, as the shell set it."""
    keys, type_ = terminal
    keys.pressed()
    termios.tcsetattr(sys.stdin, termios.TCSANOW, keys._before)
    keys.pressed()
    type_(b" ")
    assert keys.pressed() == ["space"]


def test_what_a_narrow_terminal_shows_stays_on_its_line(
    terminal: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    terminal[0].show(None, "episode 0, step 1: the policy acts")
    assert capsys.readouterr().err == "\repisode 0, step 1: the policy acts     "


def test_a_key_of_a_terminal_is_held_until_its_keyboard_repeats_it(
    terminal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (keys, type_), held = terminal, list[bool]()
    for tenth in range(14):
        monkeypatch.setattr("time.monotonic", lambda now=tenth / 10: now)
        if tenth == 0 or 6 <= tenth < 9:  # pressed for 0.9 seconds, as a keyboard sends it
            type_(b"q")
        keys.pressed()
        held.append("q" in keys.held())
    assert held == [True] * 11 + [False] * 3


def test_keys_of_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    game = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    keys = WindowKeys(rate=1000)
    for key in (game.K_SPACE, game.K_RETURN, game.K_BACKSPACE, game.K_ESCAPE, game.K_q):
        game.event.post(game.event.Event(game.KEYDOWN, key=key))
    assert [key for key in keys.pressed() if key] == ["space", "enter", "backspace", "escape", "q"]
    assert keys.held() == []
    monkeypatch.setattr(game.key, "get_pressed", lambda: defaultdict(bool, {game.K_q: True, game.K_7: True}))
    assert keys.held() == ["7", "q"]
    for key, order in ((game.K_7, ["q", "7"]), (game.K_q, ["7", "q"])):
        game.event.post(game.event.Event(game.KEYDOWN, key=key))
        keys.pressed()
        assert keys.held() == order
    keys.show(np.zeros((20, 30, 3), np.uint8), "the policy acts")
    keys.close()


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
    assert keys.pressed() == ["space", "enter", "backspace", "escape", "0", "1"]
    assert keys.held() == ["0", "1"]
    assert keys.axes() == {0: -1.0, 1: 0.5}
    box = gymnasium.spaces.Box(np.full(3, -2.0), np.full(3, 2.0), dtype=np.float64)
    assert by_keys(keys, box)(np.zeros(1), np.full(3, 0.25)).tolist() == [-2.0, 1.0, 0.25]
    assert by_keys(keys, gymnasium.spaces.Discrete(2))(np.zeros(1), np.array(0)) == 1
    sdl.SDL_JoystickDetachVirtual(place)
    assert keys.pressed() == []
    assert (keys.axes(), keys.held()) == ({}, [])
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
    spaces = gymnasium.spaces
    for space in (spaces.Box(-np.inf, 1.0, (1,)), spaces.MultiBinary(2), spaces.Discrete(11)):  # a digit is one of ten
        with pytest.raises(RepolicyError, match="cannot be given by keys"):
            by_keys(Typed(), space)
    for order, second in ((["w", "s"], -2.0), (["s", "w"], 3.0)):
        keys.held = lambda order=order: order
        assert by_keys(keys, box)(np.zeros(1), np.array([0.5, 0.5])).tolist() == [0.5, second]
    keys.held = lambda: ["s", "1", "2"]
    assert by_keys(keys, box)(np.zeros(1), np.array([0.5, 0.5])).tolist() == [0.5, -2.0]
    choices = gymnasium.spaces.Discrete(3)
    assert by_keys(keys, choices)(np.zeros(1), np.array(0)) == 2
