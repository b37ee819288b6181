"""What a run leaves behind: results by dataset, the tables as JSON, the page, and pictures."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from veritracer.bench.cells import Cell, write_json, write_results
from veritracer.bench.page import page
from veritracer.bench.paper_tables import tables_of
from veritracer.bench.tables import Results, Table, plain
from veritracer.files import write_whole

PAGE, TABLES = "results.md", "tables.json"


def write_all(out: Path, cells: Sequence[Cell], names: Sequence[str]) -> list[Table]:
    """The named tables; also written to the folder, with everything that they are made from.

    Pictures need matplotlib (the extra ``report``); without it there are none.
    """
    results = Results(cells)
    tables = tables_of(results, names)
    write_results(out / "results", cells)
    write_json(out / TABLES, {"tables": [plain(table) for table in tables]})
    write_whole(out / PAGE, page(cells, names=names), shared=True)
    if importlib.util.find_spec("matplotlib") is not None:
        from veritracer.bench.plots import draw

        draw(results, out / "plots")
    return tables
