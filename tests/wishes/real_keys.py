"""A window in a process of its own (SDL looks for a display only once), and strokes by X's own test extension.

The file of the keys is run alone, because its room would import torch, which takes seconds.
"""

import ctypes
import json
import os
import runpy
import sys
import time
from pathlib import Path

import numpy as np
import pygame

import repolicy

WindowKeys = runpy.run_path(str(Path(repolicy.__file__).parent / "wishes" / "keys.py"))["WindowKeys"]


def main() -> None:
    drawn, strokes = ctypes.CDLL("libX11.so.6"), ctypes.CDLL("libXtst.so.6")
    keys = WindowKeys(rate=1000)
    keys.show(np.zeros((20, 30, 3), np.uint8), "the policy acts")
    drawn.XOpenDisplay.restype = ctypes.c_void_p
    display = ctypes.c_void_p(drawn.XOpenDisplay(os.environ["DISPLAY"].encode()))
    drawn.XSetInputFocus(display, ctypes.c_ulong(pygame.display.get_wm_info()["window"]), 1, ctypes.c_ulong(0))

    def stroke(symbol: int, *ways: int) -> None:
        for way in ways:
            code = drawn.XKeysymToKeycode(display, ctypes.c_ulong(symbol))
            strokes.XTestFakeKeyEvent(display, code, way, ctypes.c_ulong(0))
        drawn.XSync(display, 0)

    found, until = list[str](), time.monotonic() + 20
    while "space" not in found and time.monotonic() < until:  # the window has the focus once it is shown
        stroke(0x20, 1, 0)
        time.sleep(0.05)
        found = keys.pressed()
    for symbol in (0xFF0D, 0xFF08, 0xFF1B):
        stroke(symbol, 1, 0)
    stroke(ord("q"), 1)
    found = []
    while "q" not in found and time.monotonic() < until:
        found += keys.pressed()
    json.dump([[key for key in found if key != "space"], sorted(keys.held())], sys.stdout)
    keys.close()


if __name__ == "__main__":
    main()
