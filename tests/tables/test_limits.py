"""Tables that ask for too much: refused at a stated limit, before they fill the memory."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from veritracer.errors import DataError
from veritracer.tables import Limits, open_table, read_table

SMALL = Limits(unpacked=20, unpacked_free=1 << 16)


def count(path: Path, limits: Limits) -> int:
    with open_table(str(path), limits=limits) as table:
        return sum(piece.num_rows for piece in table.chunks)


def test_a_gzip_bomb(tmp_path: Path) -> None:
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * (4 << 20)))
    with pytest.raises(DataError, match=r"at most 20 times its size, got .* of .*bomb.csv.gz — unpack it"):
        count(tmp_path / "bomb.csv.gz", SMALL)
    with pytest.raises(DataError, match="at most 20 times its size"):
        read_table(str(tmp_path / "bomb.csv.gz"), limits=SMALL)


def test_a_gzip_bomb_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(bytes(8 << 20)))
    with pytest.raises(DataError, match="at most 20 times its size"):
        count(tmp_path / "bomb.csv.gz", SMALL)


def test_a_gzip_bomb_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe:
        buffer = io.BufferedReader(io.BytesIO(gzip.compress(b"a,b\n" + b"1,2\n" * (4 << 20))))

    monkeypatch.setattr(sys, "stdin", Pipe())
    with pytest.raises(DataError, match="at most 20 times its size"):
        count(Path("-"), SMALL)


def test_honest_gzip_files_unpack(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = "".join(f"{a},{b}\n" for a, b in rng.integers(0, 10_000, (50_000, 2)))
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"a,b\n" + rows.encode()))
    (tmp_path / "tiny.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 10_000))
    assert count(tmp_path / "t.csv.gz", SMALL) == 50_000
    assert count(tmp_path / "tiny.csv.gz", SMALL) == 10_000  # below what any file may unpack to


def test_columns(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(30)]
    (tmp_path / "t.csv").write_text(",".join(names) + "\n" + ",".join(["1"] * 30) + "\n")
    pq.write_table(pa.table({name: [1] for name in names}), tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        assert count(tmp_path / name, Limits(columns=30)) == 1
        with pytest.raises(DataError, match="at most 29 columns, got 30 in"):
            count(tmp_path / name, Limits(columns=29))


def test_very_many_columns_are_counted_quickly(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(",".join(f"c{i}" for i in range(120_000)) + "\n")
    with pytest.raises(DataError, match="at most 10,000 columns, got 120,000"):
        count(tmp_path / "t.csv", Limits())
    (tmp_path / "t.csv").write_text(",".join(["c"] * 9_000) + "\n")
    with pytest.raises(DataError, match="'c' more than once"):
        count(tmp_path / "t.csv", Limits())


def test_row_groups(tmp_path: Path) -> None:
    table = pa.table({"a": np.zeros(1000), "b": np.zeros(1000)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=400, use_dictionary=False)
    assert count(tmp_path / "t.parquet", Limits(group_rows=400)) == 1000
    with pytest.raises(DataError, match=r"at most 399 rows and 8 GiB, got 400 rows .* in group 1 of"):
        count(tmp_path / "t.parquet", Limits(group_rows=399))
    with pytest.raises(DataError, match="row_group_size=100_000"):
        count(tmp_path / "t.parquet", Limits(group_bytes=1000))


@pytest.mark.long
def test_a_long_row_group_does_not_have_to_fit_into_memory(tmp_path: Path) -> None:
    """A hundred MiB in one group, read in a process of its own; what it needs is a fraction of that."""
    rng = np.random.default_rng(0)
    rows = 3_000_000
    table = pa.table({f"c{i}": rng.random(rows) for i in range(4)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=rows, use_dictionary=False)
    program = (
        "import resource, sys\n"
        "from veritracer.tables import open_table\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "with open_table(sys.argv[1]) as table:\n"
        "    print(sum(piece.num_rows for piece in table.chunks))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "t.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    read, grown = (int(line) for line in done.stdout.split())
    assert read == rows
    assert grown * 1024 < 50 << 20


def test_a_table_that_is_read_as_a_whole(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": np.zeros(100_000), "b": np.zeros(100_000)}), tmp_path / "t.parquet")
    assert len(read_table(str(tmp_path / "t.parquet"), limits=Limits(whole=2 << 20))) == 100_000
    with pytest.raises(DataError, match=r"to read as a whole, got more in .*t.parquet — give a sample"):
        read_table(str(tmp_path / "t.parquet"), limits=Limits(whole=1 << 20))
    with pytest.raises(DataError, match="half of the memory"):
        Limits().check_whole("t.parquet", 1 << 60)
