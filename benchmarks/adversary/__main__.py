"""``python -m benchmarks.adversary``: the parts that are named, or all of them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.adversary import attack, cascade, corners, forgeries, grids
from benchmarks.adversary.running import (
    STATE,
    Line,
    Part,
    Result,
    code_digest,
    run_part,
    timed,
    total,
    violations,
    whole,
)
from benchmarks.record import save, show
from veritracer.threads import cores

PARTS: dict[str, Part] = {
    module.PART.name: module.PART for module in (attack, corners, cascade, grids, forgeries)
}
HEADER = ["part", "what was tried", "how many", "violations", "what was seen", "seconds of a core", "code"]
NAMED = 20
"""Violations that are printed for each part; all of them are in the JSON."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adversary", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all by default")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a few jobs of each part: minutes, not saved")
    size.add_argument("--share", type=float, default=1.0, help="this share of a full run; not saved below 1")
    size.add_argument("--job", type=int, help="repeat one job of one part, and print what it finds")
    parser.add_argument("--workers", type=int, default=cores(), help="processes side by side")
    asked = parser.parse_args()
    unknown = [name for name in asked.parts if name not in PARTS]
    if unknown or (asked.job is not None and len(asked.parts) != 1):
        parser.error(f"expected parts among {', '.join(PARTS)} (one of them with --job), got {asked.parts}")
    return asked


def main() -> None:
    asked = arguments()
    if asked.job is not None:
        result = timed(PARTS[asked.parts[0]], asked.job)
        print(result.get("crash") or json.dumps(result, indent=1))
        sys.exit(1 if result["violations"] or "crash" in result else 0)
    code, share = code_digest(), None if asked.quick else asked.share
    results = {
        name: (code, run_part(PARTS[name], share, asked.workers, code))
        for name in PARTS
        if name in asked.parts or not asked.parts
    }
    full = share is not None and share >= 1
    if full:  # together with the last full runs of the other parts, and the code that they were of
        others = {name: whole(part, code) for name, part in PARTS.items() if name not in results}
        results |= {name: found for name, found in others.items() if found is not None}
    report({name: results[name] for name in PARTS if name in results}, full=full)


def report(results: Mapping[str, tuple[str, Sequence[Result]]], *, full: bool) -> None:
    """The table, printed; saved after a full run. Exits with 1 if anything was broken."""
    rows = []
    for name, (code, found) in results.items():
        lines = PARTS[name].lines(found)
        crashed = sum("crash" in result for result in found)
        if crashed:
            lines.append(Line("jobs that crashed", len(found), crashed, "see the list of violations"))
        seconds = [f"{sum(result['seconds'] for result in found):,.0f}", *[""] * len(lines)]
        for line, took in zip(lines, seconds, strict=False):
            row = [name, line.tried, f"{line.count:,}", f"{line.violations:,}", line.seen, took]
            rows.append([*row, code[:8]])
    table = show("A hostile review", HEADER, rows)
    broken = {name: violations(found) for name, (_, found) in results.items()}
    details = {
        name: {"code": code, **_document(PARTS[name], found, broken[name])}
        for name, (code, found) in results.items()
    }
    if full:
        save("adversary", {"parts": details}, [table])
    else:
        STATE.mkdir(parents=True, exist_ok=True)
        (STATE / "partial.json").write_text(json.dumps({"parts": details}, indent=1) + "\n")
        (STATE / "partial.md").write_text(table)
    for name, found in broken.items():
        for one in found[:NAMED]:
            print(f"{name}: {json.dumps(one)}")
    sys.exit(f"broken: {sum(map(len, broken.values())):,}" if any(broken.values()) else 0)


def _document(part: Part, found: Sequence[Result], broken: list[dict[str, Any]]) -> dict[str, Any]:
    numbers = sorted({k for result in found for k, v in result.items() if isinstance(v, int)})
    return {
        "jobs": len(found),
        "jobs_of_a_full_run": part.jobs,
        "torch": sorted({result["torch"] for result in found}),
        "seconds": sum(result["seconds"] for result in found),
        "lines": [line._asdict() for line in part.lines(found)],
        "numbers": {name: total(found, name) for name in numbers},
        "violations": broken,
    }


if __name__ == "__main__":
    main()
