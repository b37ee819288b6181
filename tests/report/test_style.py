"""The style sheet's colours, measured: contrast, and whether a colour-blind reader can tell series apart."""

from __future__ import annotations

import itertools
import re
from importlib.resources import files

import numpy as np
import pytest

STYLE = (files("veritracer.report") / "templates" / "report.css").read_text(encoding="utf-8")
MODES = dict(
    zip(
        ("light", "dark", "print"),
        (
            dict(re.findall(r"--(\w[\w-]*): (#[0-9a-f]{6})\b", block))
            for block in re.findall(r":root \{(.*?)\}", STYLE, flags=re.DOTALL)
        ),
        strict=True,
    )
)

# Machado, Oliveira and Fernandes 2009, severity 1: linear RGB as such a reader sees it.
READERS = {
    "usual": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    weights = [0.2126, 0.7152, 0.0722]
    dark, light = sorted((linear(one) @ weights, linear(other) @ weights))
    return float((light + 0.05) / (dark + 0.05))


def lab(colour: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of linear RGB, for daylight."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ colour / [0.9505, 1.0, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ground", ["page", "sheet"])
def test_text_and_lines_stand_out(mode: str, ground: str) -> None:
    """Text needs 4.5 : 1, lines and bars 3 : 1 (WCAG 2.2)."""
    colour = MODES[mode]
    for ink, least in (("ink", 4.5), ("soft", 4.5), ("s1", 4.5), ("s0", 3), ("s2", 3), ("s3", 3)):
        assert contrast(colour[ink], colour[ground]) >= least, ink
    for ink, wash in (("good", "wash"), ("warn", "warn-wash")):
        assert contrast(colour[ink], colour[wash]) >= 4.5, ink


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reader", READERS)
def test_series_can_be_told_apart(mode: str, reader: str) -> None:
    seen = {s: lab(np.clip(READERS[reader] @ linear(MODES[mode][s]), 0, 1)) for s in ("s0", "s1", "s2", "s3")}
    for one, other in itertools.combinations(seen, 2):
        # A difference of 2.3 is just noticeable side by side; 20 is plain at a glance.
        assert np.linalg.norm(seen[one] - seen[other]) > 20, (one, other)
