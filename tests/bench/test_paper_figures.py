"""What the demo's picture shows is what the library certifies."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import pytest
import torch

import veritracer as vt
from veritracer_bench import paper_figures as figures


@pytest.mark.parametrize("example", figures.FIGURE_1, ids=lambda e: e.name)
def test_the_shades_agree_with_certificates(example: figures.Example) -> None:
    side = torch.linspace(-5, 5, 21, dtype=torch.float64)
    points = torch.cartesian_prod(side, side)
    favourable, unfavourable = figures.worst_logits(example, points)
    model = figures.model_of(example)
    x = torch.tensor([figures.PERSON], dtype=torch.float64).expand(len(points), 2)
    found = vt.certify(model, x, points, vt.ParamSet.around(model, radius=figures.DELTA), radius=False)
    away_from_ties = favourable.abs() > 1e-4  # certify adds its slack: float32 at logits below 100
    assert torch.equal((favourable < 0)[away_from_ties], torch.as_tensor(found.certified)[away_from_ties])
    assert not ((favourable < 0) & (unfavourable < 0)).any()


def test_f1_has_none_because_one_model_says_yes_to_everybody() -> None:
    example = figures.FIGURE_1[1]
    always = torch.nn.Linear(2, 1, dtype=torch.float64)
    with torch.no_grad():
        always.weight.zero_()
        always.bias.fill_(0.3)
    assert example.counterfactual is None
    assert vt.ParamSet.around(figures.model_of(example), radius=figures.DELTA).contains(always)


def test_all_named_counterfactuals_are_certified_up_to_the_paper_s_delta() -> None:
    named = [c for _, c in figures.certificates() if c is not None]
    assert [c.certified for c in named] == [True] * 3
    for certificate in named:
        assert certificate.radius is not None
        assert 1.9 < 1.9 * certificate.radius < 2.0  # at 2 the bound is the tie 0


def test_a_picture_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    def fail(self: Figure, file: BinaryIO, **options: object) -> None:
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        figures._save(Figure(), tmp_path / "new" / "picture.png")
    assert not list((tmp_path / "new").iterdir())
