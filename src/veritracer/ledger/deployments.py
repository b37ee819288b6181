"""Deployments: which model decides, as the ledger says.

A service records its model before it answers, and issues promises only while that model is the one deployed
last. So a model that breaks promises cannot be put into use unnoticed, and a restart cannot silently undo the
choice of another model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from veritracer.errors import DeploymentError, message
from veritracer.ledger.verdicts import Verdict

if TYPE_CHECKING:
    from veritracer.ledger.auditing import Audit
    from veritracer.ledger.promises import IssuingModel

Deployment = dict[str, Any]
"""The content of a ``deployment`` entry."""

AGAIN = "start the service again once nobody else writes into the ledger"


def deployment_of(audit: Audit, by: str, reason: str) -> Deployment:
    """Return the content of the entry; refuse a model that breaks promises without a reason."""
    broken, unknown = audit.counts[Verdict.BROKEN], audit.counts[Verdict.NOT_CHECKABLE]
    if not audit.ok and not reason:
        parts = [f"breaks {broken:,}"] if broken else []
        parts += [f"leaves {unknown:,} unchecked"] if unknown else []
        received = f"one that {' and '.join(parts)} of {audit.live:,}"
        remedy = "update it with veritracer update --keep, or say why with --serve-broken REASON"
        raise DeploymentError(message("a model that keeps every live promise", received, remedy))
    about = {"model": audit.model_digest, "encoding": audit.encoding_digest, "threshold": audit.threshold}
    counts = {"live": audit.live, "broken": broken, "not_checkable": unknown}
    return {**about, **counts, "by": by, "reason": "" if audit.ok else reason}


def same_model(one: Deployment, other: Deployment) -> bool:
    """Return whether two deployments are of the same weights, encoding and threshold."""
    return all(one[name] == other[name] for name in ("model", "encoding", "threshold"))


def check_replacing(last: Deployment | None, new: Deployment) -> None:
    """Refuse another model than the one deployed last."""
    if last is not None and not same_model(last, new):
        remedy = "serve that one, or deploy this one with --replace"
        raise DeploymentError(message(f"the model deployed last, {_named(last)}", _named(new), remedy))


def check_unchanged(audited: str, head: str) -> None:
    """Refuse a deployment where the ledger has changed since the audit: a new promise was not in it."""
    if audited != head:
        received = "one that was written to in the meantime"
        raise DeploymentError(message("the ledger as it was audited", received, AGAIN))


def check_issuing(last: Deployment | None, model: IssuingModel) -> None:
    """Refuse promises of a model that is not the one deployed last, or that breaks earlier promises."""
    if last is None:
        return
    mine = {"model": model.model_digest, "encoding": model.encoding.digest, "threshold": model.threshold}
    if not same_model(last, mine):
        remedy = "restart this service with that one"
        raise DeploymentError(message(f"the model deployed last, {_named(last)}", _named(mine), remedy))
    if last["reason"]:
        received = f"one that is served although it breaks {last['broken']:,}"
        remedy = "deploy a model that keeps them"
        raise DeploymentError(message("a model that keeps every live promise", received, remedy))


def _named(one: Deployment) -> str:
    return f"{one['model'][:12]}… (encoding {one['encoding'][:8]}…, threshold {one['threshold']:g})"
