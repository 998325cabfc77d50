"""Sources of a person's keys: a terminal, or a window of pygame, which takes gamepads as well."""

import os
import re
import select
import shutil
import sys
import time
from typing import Any

from repolicy.errors import UsageError

NAMED = {" ": "space", "\n": "enter", "\r": "enter", "\x7f": "backspace", "\b": "backspace", "\x1b": "escape"}
BUTTONS = ("space", "enter", "backspace", "escape")  # the first buttons of a gamepad; the next ones are digits
DEAD_ZONE = 0.1  # an axis within this distance of its rest position counts as untouched
RATE = 30.0  # steps per second that a person can follow
# A terminal reports no release, so a key counts as held for so many seconds. A keyboard repeats a key after 0.5 s.
HELD, REPEATED = 0.7, 0.25
SEQUENCE = re.compile(r"\x1b[\[O]?[\d;]*[A-Za-z~]")  # an arrow, a function key, or Alt with a key


class TerminalKeys:
    """Reads keys from a terminal, without waiting for Enter."""

    shows = False  # whether `show` shows the environment, too

    def __init__(self) -> None:
        import termios

        if not sys.stdin.isatty():
            raise UsageError("keys need a terminal or a window, and neither is here: add --person with `wants`")
        self._file = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._file)
        self._held_until: dict[str, float] = {}
        self.pressed()  # from here on without echo

    def pressed(self) -> list[str]:
        """Return the keys pressed since the last call: space, enter, backspace, escape, letters or digits."""
        import termios
        import tty

        tty.setcbreak(self._file, termios.TCSANOW)  # each time, because a shell resets it by Ctrl-Z and fg
        keys, before = list[str](), self.held()
        while select.select([self._file], [], [], 0)[0] and (text := os.read(self._file, 64).decode(errors="ignore")):
            keys += [NAMED.get(key, key) for key in SEQUENCE.sub("", text)]
        for key in keys:
            self._held_until.pop(key, None)  # it comes last: a keyboard repeats only the key that was pressed last
            self._held_until[key] = time.monotonic() + (REPEATED if key in before else HELD)
        return keys

    def held(self) -> list[str]:
        """Return the keys that are down now, the one pressed last at the end."""
        return [key for key, until in self._held_until.items() if time.monotonic() < until]

    def axes(self) -> dict[int, float]:
        """Return the positions of a gamepad's axes, from −1 to 1, without those at rest."""
        return {}

    def show(self, picture: Any, words: str) -> None:
        sys.stderr.write(f"\r{words:60s}"[: shutil.get_terminal_size().columns])  # else each step begins a line
        sys.stderr.flush()
        time.sleep(1 / RATE)

    def close(self) -> None:
        import termios

        termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)
        sys.stderr.write("\n")


class WindowKeys:
    """A window that shows the environment and reads keys and gamepads."""

    shows = True

    def __init__(self, rate: float = RATE) -> None:
        try:
            import pygame
        except ImportError:
            raise UsageError("a window needs pygame: pip install 'repolicy[film]', or add --keys terminal") from None
        self._game, self._rate = pygame, rate
        # With acceleration the window stays black beside MuJoCo's OpenGL.
        os.environ.setdefault("SDL_FRAMEBUFFER_ACCELERATION", "0")
        try:
            pygame.display.init()
            pygame.font.init()
            pygame.joystick.init()
        except pygame.error as error:
            raise UsageError(f"no window can be opened ({error}): add --keys terminal") from None
        if pygame.display.get_driver() == "offscreen" and not os.environ.get("SDL_VIDEODRIVER"):
            raise UsageError("no window can be opened, because there is no display: add --keys terminal")
        self._screen = pygame.display.set_mode((480, 480), pygame.RESIZABLE)
        pygame.display.set_caption("Space: take over, hand back. Enter: end. Backspace: drop. Escape: leave.")
        self._clock = pygame.time.Clock()
        self._pads = list[tuple[Any, list[float]]]()  # gamepads, and their axes' rest positions
        self._presses = list[str]()

    def pressed(self) -> list[str]:
        game, keys = self._game, list[str]()
        for event in game.event.get():
            if event.type == game.QUIT:
                keys.append("escape")
            elif event.type == game.KEYDOWN:
                name = game.key.name(event.key)
                keys.append("enter" if name in ("return", "enter") else name)
            elif event.type == game.JOYBUTTONDOWN:
                digit = event.button - len(BUTTONS)
                keys.append(str(digit) if digit >= 0 else BUTTONS[event.button])
            elif event.type == game.JOYDEVICEADDED:
                pad = game.joystick.Joystick(event.device_index)
                self._pads.append((pad, [pad.get_axis(axis) for axis in range(pad.get_numaxes())]))
            elif event.type == game.JOYDEVICEREMOVED:
                self._pads = [each for each in self._pads if each[0].get_instance_id() != event.instance_id]
        self._presses = [key for key in self._presses if key not in keys] + keys
        return keys

    def held(self) -> list[str]:
        down = self._game.key.get_pressed()
        letters = "abcdefghijklmnopqrstuvwxyz0123456789"
        digits = {
            str(button - len(BUTTONS))
            for pad, _ in self._pads
            for button in range(len(BUTTONS), pad.get_numbuttons())
            if pad.get_button(button)
        }
        held = sorted(digits | {letter for letter in letters if down[self._game.key.key_code(letter)]})
        return sorted(held, key=lambda key: self._presses.index(key) if key in self._presses else -1)

    def axes(self) -> dict[int, float]:
        return {
            axis: pad.get_axis(axis)
            for pad, rests in self._pads
            for axis, rest in enumerate(rests)
            if abs(pad.get_axis(axis) - rest) > DEAD_ZONE
        }

    def show(self, picture: Any, words: str) -> None:
        game, screen = self._game, self._screen
        if picture is not None:
            surface = game.surfarray.make_surface(picture.swapaxes(0, 1))
            area = surface.get_rect().fit(screen.get_rect())
            screen.fill((0, 0, 0))
            screen.blit(game.transform.smoothscale(surface, area.size), area)
        screen.blit(game.font.Font(None, 24).render(words, True, (255, 255, 255), (0, 0, 0)), (8, 8))
        game.display.flip()
        self._clock.tick(self._rate)

    def close(self) -> None:
        self._game.joystick.quit()
        self._game.display.quit()


Keys = TerminalKeys | WindowKeys
