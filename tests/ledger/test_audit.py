"""Verdicts on promises: each of them is reached, and none is better than it should be."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from promise_cases import changed, issued, moved, points, with_bias, without_originals
from torch import nn

import veritracer as vt
from memory_ledger import InMemory, in_memory
from recourse_tables import SCHEMA, applicants
from veritracer.app.cli.ledger import print_audit
from veritracer.encoding import Encoding
from veritracer.errors import DataError, NotSupportedError
from veritracer.ledger.auditing import Audit, audit
from veritracer.ledger.promises import IssuingModel, Promises
from veritracer.ledger.verdicts import VERDICTS, Verdict

DIGIT = 1e-9  # the tenth one of logits from 1 to 10

KINDS = ("kept by proof", "kept, checked", "superseded", "broken")  # and "not checkable": test_raw_rows.py


def counts(found: Audit) -> tuple[int, ...]:
    return tuple(found.counts[kind] for kind in KINDS)


def logits(module: nn.Module, x: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return module(x)[:, 0].numpy()


def test_the_issuing_model_keeps_everything_by_proof() -> None:
    model, promises, found = issued()
    assert (found.status != "none").sum() == promises.counts().live > 20
    same = audit(promises, model)
    assert counts(same) == (same.live, 0, 0, 0)
    assert same.ok
    assert same.live == promises.counts().live
    assert all(group.farthest == 0 for group in same.groups)


def test_every_model_of_the_set_keeps_everything_by_proof() -> None:
    model, promises, _ = issued()
    kappas = promises.pieces[0].kappa
    unconditional = changed(promises, conditional=False)
    near = moved(model.classifier_, 0.999 * kappas.min())
    found = audit(unconditional, near, encoding=model.encoding_)
    assert counts(found) == (found.live, 0, 0, 0)
    assert max(group.farthest for group in found.groups) <= 1


def test_outside_of_the_set_predictions_decide() -> None:
    model, promises, _ = issued()
    piece = promises.pieces[0]
    for by in (0.5, 2.0):
        later = moved(model.classifier_, by, seed=3)
        found = audit(promises, later, encoding=model.encoding_, recourse=0)
        x_cf, x = logits(later, piece.x_cf), logits(later, piece.x)
        inside = piece.radius >= by  # corners: all of the radius is used
        assert not inside.any()
        assert counts(found) == (
            0,
            ((x_cf > 0) & (x <= 0)).sum(),
            ((x_cf > 0) & (x > 0)).sum(),
            (x_cf <= 0).sum(),
        )
        group = found.groups[0]
        assert group.distances == pytest.approx([by / group.kappa] * 6)


def test_broken_promises_are_listed_with_who_by_how_much_and_what_now() -> None:
    model, promises, _ = issued()
    later = with_bias(model.classifier_, -4.4)
    found = audit(promises, later, encoding=model.encoding_, recourse=3)
    piece = promises.pieces[0]
    expected = logits(later, piece.x_cf)
    assert found.counts["broken"] == (expected <= 0).sum() > 3
    table = found.table()
    assert table["logit"].is_monotonic_increasing
    for line in table.to_dict("records"):
        at = int(np.flatnonzero(piece.sequence == line["sequence"])[0])
        assert line["id"] == piece.ids[at]
        assert line["logit"] == pytest.approx(expected[at], abs=DIGIT)
    assert [one.sequence for one in found.recourse] == table["sequence"][:3].tolist()
    for one in found.recourse:
        assert one.start == "original row"
        raw = model.encoding_.decode(piece.x[piece.sequence == one.sequence])
        for name, before, after in one.changes:
            assert raw[name].iloc[0] == before or before != before
            raw[name] = after
        if one.status != "none":
            assert logits(later, model.encoding_.encode(raw))[0] > 0
            assert one.sentence
    assert not found.ok
    assert {one.status for one in found.recourse} & {"certified", "valid"}


def test_all_broken_promises_get_recourse_when_asked_and_none_when_not() -> None:
    model, promises, _ = issued()
    later = with_bias(model.classifier_, -3.9)
    every = audit(promises, later, encoding=model.encoding_, recourse=None)
    assert len(every.recourse) == every.counts["broken"] > 0
    assert audit(promises, later, encoding=model.encoding_, recourse=0).recourse == ()


def test_superseded_is_where_the_person_is_accepted_as_they_are() -> None:
    model, promises, _ = issued()
    later = with_bias(model.classifier_, 50.0)
    found = audit(promises, later, encoding=model.encoding_)
    assert counts(found) == (0, 0, found.live, 0)
    unknown = audit(without_originals(promises), later, encoding=model.encoding_)
    assert counts(unknown) == (0, found.live, 0, 0)


def test_another_threshold_is_outside_of_every_set() -> None:
    model, promises, _ = issued()
    found = audit(promises, model.classifier_, encoding=model.encoding_, threshold=0.6)
    assert found.counts["kept by proof"] == 0
    assert {group.incompatibility for group in found.groups} == {"threshold 0.6 instead of 0.5"}
    assert all(group.farthest == 0 for group in found.groups)


def test_another_architecture_is_checked_and_has_no_distance() -> None:
    model, promises, _ = issued()
    torch.manual_seed(0)
    other = nn.Sequential(nn.Linear(model.encoding_.dim, 1)).double()
    found = audit(promises, other, encoding=model.encoding_, recourse=1)
    assert found.counts["kept by proof"] == 0
    assert {(g.incompatibility, g.distances) for g in found.groups} == {("another architecture", None)}
    wider = nn.Sequential(
        nn.Linear(model.encoding_.dim, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 1)
    )
    assert audit(promises, wider, encoding=model.encoding_, recourse=0).groups[0].distances is None


def refitted() -> tuple[Encoding, vt.Schema]:
    """An encoding of the same table with other scales and another order of the columns."""
    features = [
        f.model_copy(update={"upper": 60_000.0}) if f.name == "savings" else f for f in SCHEMA.features
    ]
    schema = vt.Schema(features[::-1], "approved", "yes", "no")
    return Encoding.fit(schema, applicants()[0]), schema


def test_another_encoding_reads_the_raw_values() -> None:
    _, promises, found = issued()
    encoding, _ = refitted()
    torch.manual_seed(1)
    other = nn.Sequential(nn.Linear(encoding.dim, 6), nn.ReLU(), nn.Linear(6, 1)).double()
    with torch.no_grad():
        other[2].bias -= logits(other, encoding.encode(found.frame)).mean()
    told = audit(promises, other, encoding=encoding, recourse=0)
    given = found.status != "none"
    shown = logits(other, encoding.encode(found.frame[given]))
    own = logits(other, encoding.encode(found.original[given]))
    assert 0 < (shown <= 0).sum() < len(shown)
    assert counts(told) == (
        0,
        ((shown > 0) & (own <= 0)).sum(),
        ((shown > 0) & (own > 0)).sum(),
        (shown <= 0).sum(),
    )
    assert {group.incompatibility for group in told.groups} == {"another encoding"}


def test_a_region_keeps_its_width_in_another_encoding() -> None:
    from veritracer.ledger.promises import encoded_rows

    _, promises, _ = issued(overshoot=0.05)
    encoding, _ = refitted()
    piece, issuing = promises.pieces[0], promises.issuing[0]
    _, _, here, _ = encoded_rows(encoding, piece, issuing)
    assert bool((here.lower != here.upper).any())
    mine, theirs = (e.columns.index("savings") for e in (encoding, issuing.encoding))
    _, _, there, _ = encoded_rows(issuing.encoding, piece, issuing)
    width = (there.upper - there.lower)[:, theirs] * 50_000
    inside = (here.upper[:, mine] < 1) & (here.lower[:, mine] > 0)
    again = (here.upper - here.lower)[:, mine] * 60_000
    assert torch.allclose(again[inside], width[inside], rtol=0, atol=1e-6)


def test_a_table_that_the_model_can_not_read_is_refused() -> None:
    _, promises, _ = issued()
    schema = vt.Schema([vt.Feature("height", "continuous", lower=0.0, upper=3.0)], "approved", "yes", "no")
    import pandas as pd

    encoding = Encoding.fit(schema, pd.DataFrame({"height": [1.0, 2.0]}))
    with pytest.raises(DataError, match="can read what"):
        audit(promises, nn.Linear(1, 1).double(), encoding=encoding)


def linear(weight: tuple[float, float], bias: float) -> nn.Linear:
    module = nn.Linear(2, 1).double()
    with torch.no_grad():
        module.weight.copy_(torch.tensor([weight], dtype=torch.float64))
        module.bias.fill_(bias)
    return module


def by_hand(module: nn.Module, x: list[float], x_cf: list[float], **columns: object) -> InMemory:
    """One promise of a linear model of two numbers in [0, 1]."""
    import pandas as pd

    frame = pd.DataFrame({"a": [0.0, 1.0], "b": [0.0, 1.0]})
    schema = vt.Schema([vt.Feature(n, "continuous", lower=0.0, upper=1.0) for n in "ab"], "y", "yes", "no")
    around = vt.ParamSet.around(module, radius=1.0)
    issuing = IssuingModel.of(module, Encoding.fit(schema, frame), 0.5, around)
    point, own = (torch.tensor([row], dtype=torch.float64) for row in (x_cf, x))
    known: dict[str, object] = {"kappa": 0.1, "conditional": False, "radius": 0.1, "favourable": False}
    numbers = {"issued": 0.0, "expires": np.inf, "worst_logit": -1.0, **known, **columns}
    filled = {k: np.array([v]) for k, v in numbers.items() if k not in ("lower", "upper")}
    region = points(issuing.encoding, 1)
    if "lower" in columns or "upper" in columns:
        region = np.array([[columns.get(k, x_cf) for k in ("lower", "upper")]], dtype=float)
    piece = Promises(
        model=issuing.digest,
        sequence=np.array([7]),
        ids=["me"],
        x_cf=point,
        x=own,
        region=region,
        **filled,
        shown=issuing.encoding.decode(point),
        original=issuing.encoding.decode(own),
    )
    return InMemory((issuing,), (piece,))


def verdict(promise: InMemory, module: nn.Module, **options: object) -> str:
    found = audit(promise, module, encoding=promise.issuing[0].encoding, recourse=0, **options)
    return next(
        (kind for kind in KINDS if found.counts[kind]), "expired" if found.counts["expired"] else "none"
    )


def test_a_conditional_promise_is_proved_while_x_keeps_its_decision() -> None:
    today = linear((1.0, 0.0), -0.5)
    promise = by_hand(today, [0.45, 0.0], [0.8, 0.0], conditional=True)
    assert verdict(promise, linear((1.0, 0.0), -0.51)) == "kept by proof"
    assert verdict(promise, linear((1.0, 0.0), -0.42)) == "superseded"  # inside of the set, but x is accepted
    assert verdict(without_originals(promise), linear((1.0, 0.0), -0.51)) == "kept, checked"
    free = by_hand(today, [0.45, 0.0], [0.8, 0.0])
    assert verdict(free, linear((1.0, 0.0), -0.42)) == "kept by proof"  # whatever became of x


def test_the_larger_radius_counts_while_x_keeps_its_decision() -> None:
    today, later = linear((1.0, 0.0), -0.5), linear((1.0, 0.0), -0.62)
    assert verdict(by_hand(today, [0.45, 0.0], [0.8, 0.0]), later) == "kept, checked"
    wide = by_hand(today, [0.45, 0.0], [0.8, 0.0], radius=0.2)
    assert verdict(wide, later) == "kept by proof"
    assert verdict(wide, linear((1.0, 0.0), -0.38)) == "superseded"
    assert verdict(without_originals(wide), later) == "kept, checked"


def test_a_promise_for_its_day_is_proved_by_the_same_weights_alone() -> None:
    today = linear((1.0, 0.0), -0.5)
    promise = by_hand(today, [0.4, 0.0], [0.8, 0.0], kappa=0.0, radius=0.0)
    assert verdict(promise, linear((1.0, 0.0), -0.5)) == "kept by proof"
    assert verdict(promise, linear((1.0, 0.0), -0.5 + 1e-15)) == "kept, checked"


def test_a_logit_within_rounding_is_not_kept() -> None:
    today = linear((1.0, 0.0), -0.5)
    promise = by_hand(today, [0.4, 0.0], [0.8, 0.0])
    assert verdict(promise, linear((1.0, 0.0), -0.8 + 1e-9)) == "broken"
    assert verdict(promise, linear((1.0, 0.0), -0.8 + 1e-4)) == "kept, checked"
    assert verdict(promise, linear((1.0, 0.0), -0.8 + 1e-4).float()) == "kept, checked"


def test_broken_whatever_became_of_x() -> None:
    promise = by_hand(linear((1.0, 0.0), -0.5), [0.4, 0.0], [0.8, 0.0])
    assert verdict(promise, linear((-1.0, 0.0), 0.5)) == "broken"  # x is accepted now, x' is not
    found = audit(promise, linear((-1.0, 0.0), 0.5), encoding=promise.issuing[0].encoding)
    assert found.recourse[0].start == "promised row"


def test_a_region_is_kept_only_as_a_whole() -> None:
    today = linear((1.0, 0.0), -0.5)
    region = {"lower": [0.8, 0.0], "upper": [0.8, 0.4]}
    promise = by_hand(today, [0.4, 0.0], [0.8, 0.0], **region)
    assert verdict(promise, linear((1.0, -0.5), -0.5)) == "kept, checked"
    assert verdict(promise, linear((1.0, -0.8), -0.5)) == "broken"  # x' itself is fine, its neighbour not
    assert verdict(by_hand(today, [0.4, 0.0], [0.8, 0.0]), linear((1.0, -0.8), -0.5)) == "kept, checked"


def test_promises_to_people_who_were_accepted() -> None:
    promise = by_hand(linear((1.0, 0.0), -0.5), [0.8, 0.0], [0.2, 0.0], favourable=True)
    assert verdict(promise, linear((1.0, 0.0), -0.55)) == "kept by proof"
    assert verdict(promise, linear((1.0, 0.0), -0.1)) == "broken"
    assert verdict(promise, linear((1.0, 0.0), -0.9)) == "superseded"


def test_expired_promises_are_counted_and_not_judged() -> None:
    promise = by_hand(linear((1.0, 0.0), -0.5), [0.4, 0.0], [0.8, 0.0], expires=100.0)
    assert verdict(promise, linear((-1.0, 0.0), 0.5), at=99.0) == "broken"
    assert verdict(promise, linear((-1.0, 0.0), 0.5), at=100.0) == "expired"


def test_a_proof_that_the_prediction_contradicts_is_not_called_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Such a promise cannot be issued; in a ledger it is the work of somebody who changed x'."""
    promise = by_hand(linear((1.0, 0.0), -0.5), [0.4, 0.0], [0.45, 0.0])
    found = audit(promise, linear((1.0, 0.0), -0.5), encoding=promise.issuing[0].encoding)
    assert found.counts["not checkable"] == found.live == 1
    assert not found.ok
    assert "run veritracer verify" in found.unchecked["reason"].item()
    print_audit(found, None, passed=False, out=None)
    said = capsys.readouterr().out
    assert "Promises that cannot be checked\nnumber  whose" in said
    assert said.endswith("FAILED: 1 cannot be checked (--allow-unchecked).\n")


@pytest.mark.parametrize("chunk", [1, 3, 7])
@pytest.mark.parametrize("options", [{}, {"overshoot": 0.05}], ids=["points", "regions"])
def test_pieces_and_chunks_change_nothing(chunk: int, options: dict[str, float]) -> None:
    """But the last of ten digits: sums of other rows may be computed in another order."""
    model, promises, _ = issued(**options)
    later = moved(model.classifier_, 1.0, seed=5)
    whole, pieces = (
        audit(promises, later, encoding=model.encoding_, recourse=2, chunk=size).to_plain()
        for size in (1000, chunk)
    )
    assert whole["counts"]["broken"] > 2
    told = [{line["sequence"]: line.pop("logit") for line in one["broken"]} for one in (whole, pieces)]
    assert told[0] == pytest.approx(told[1], abs=1.01 * DIGIT)
    for one in (whole, pieces):
        one["broken"].sort(key=lambda line: line["sequence"])
    assert whole == {**pieces, "at": whole["at"]}


def test_logits_are_told_in_ten_digits_and_never_better_than_they_are() -> None:
    model, promises, _ = issued()
    later = with_bias(model.classifier_, -4.4)
    found = audit(promises, later, encoding=model.encoding_, recourse=0).table()
    piece = promises.pieces[0]
    for line in found.to_dict("records"):
        exact = float(logits(later, piece.x_cf[piece.sequence == line["sequence"]])[0])
        assert exact - DIGIT <= line["logit"] <= exact + 1e-13
        assert line["logit"] == float(f"{line['logit']:.10g}")
    assert found.sort_values(["logit", "sequence"])["sequence"].tolist() == found["sequence"].tolist()


def test_what_an_audit_says() -> None:
    model, promises, _ = issued()
    found = audit(promises, with_bias(model.classifier_, -4.4), encoding=model.encoding_, recourse=2)
    told = json.loads(found.to_json())
    assert told["counts"] == found.counts
    assert (told["ok"], told["live"]) == (False, found.live)
    assert len(told["broken"]) == found.counts["broken"]
    assert str(found).startswith(f"{found.live} live promises: ")
    assert f"{found.counts['broken']} broken" in str(found)


def test_several_issuing_models() -> None:
    first, promises, _ = issued()
    second, others, _ = issued("standard")
    both = promises + others
    found = audit(both, first)
    assert found.live == promises.counts().live + others.counts().live
    by_model = {
        model: sum(g.counts["kept by proof"] for g in found.groups if g.model == model)
        for model in both.models()
    }
    assert by_model[promises.issuing[0].digest] == promises.counts().live
    assert by_model[others.issuing[0].digest] == 0
    assert second is not first


def test_a_model_without_an_encoding_is_refused() -> None:
    _, promises, _ = issued()
    with pytest.raises(NotSupportedError, match="encoding="):
        audit(promises, nn.Linear(3, 1))


def test_recourse_objects_are_audited_too() -> None:
    model, promises, _ = issued()
    assert audit(promises, model.recourse()).ok
    assert in_memory(issued()[2], model.classifier_).counts().live == promises.counts().live


def test_a_model_is_known_by_its_type_and_not_by_its_attributes() -> None:
    model, promises, _ = issued()
    lookalike = SimpleNamespace(**vars(model), recourse=model.recourse)
    with pytest.raises(NotSupportedError, match="a model with its encoding, got a SimpleNamespace"):
        vt.audit(promises, lookalike)
    assert vt.audit(promises, model.recourse(), recourse=0).counts == vt.audit(promises, model).counts


def test_a_recourse_is_audited_at_the_threshold_that_it_was_given() -> None:
    model, promises, _ = issued()
    other = vt.Recourse(model.classifier_, None, model.encoding_, threshold=0.3)
    (group,) = vt.audit(promises, other, recourse=0).groups
    assert (group.incompatibility, group.counts[Verdict.PROVED]) == ("threshold 0.3 instead of 0.5", 0)


def test_verdicts_are_the_words_that_documents_always_had() -> None:
    words = ["kept by proof", "kept, checked", "superseded", "broken", "not checkable"]
    assert [verdict.value for verdict in VERDICTS] == words
    assert [verdict.code for verdict in VERDICTS] == list(range(5))
    found = json.loads(vt.audit(issued()[1], issued()[0]).to_json())
    assert list(found["counts"]) == [*words, "expired"]
