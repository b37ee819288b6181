"""Check the places that a command line names, before torch is imported, and read what is small."""

from __future__ import annotations

import json
import tomllib
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import veritracer as vt
from veritracer import model_folder, tables
from veritracer.errors import DataError, LedgerError, ModelFileError, SchemaError, message
from veritracer.files import writable
from veritracer.threads import only_compute

if TYPE_CHECKING:
    from veritracer.app.cli.options import ReadOptions
    from veritracer.estimator import VeriTraCER
    from veritracer.model_folder import ModelColumns
    from veritracer.schema import Schema


# ---------------------------------------------------------------- inputs


def check_table(path: str, reading: ReadOptions, *, lenient: bool = False) -> tuple[str, ...] | None:
    """Return the columns of a table; refuse one that cannot be opened.

    None of standard input, which can be read only once. ``lenient`` does not mind rows of too few cells.
    """
    if path == tables.STANDARD:
        return None
    batches = tables.read_batches(path, reading.query, csv=reading.csv, collect_rejects=lenient)
    with closing(batches):
        return next(batches).columns


def check_ledger(place: str) -> None:
    """Refuse a ledger's file that does not exist."""
    if "://" not in place and not Path(place).exists():
        remedy = "check the path, or issue a promise first"
        raise LedgerError(message("a ledger that exists", f"no file {place}", remedy))


def read_schema(path: Path) -> Schema:
    """Read a schema from a JSON or TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix.casefold() == ".toml":
            text = json.dumps(tomllib.loads(text), default=str)
    except tomllib.TOMLDecodeError as error:
        received = f"{path} that is not ({error})"
        raise SchemaError(message("a schema as TOML", received, "correct that line")) from None
    except (OSError, UnicodeDecodeError) as error:
        received = f"{path}, which cannot be read ({getattr(error, 'strerror', None) or 'not UTF-8'})"
        remedy = "name the schema that fit wrote beside the model, or a TOML file"
        raise SchemaError(message("a schema file", received, remedy)) from None
    return vt.Schema.from_json(text)


def read_key(path: Path) -> str:
    """Read a key from a file."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        received = f"{path} ({getattr(error, 'strerror', None) or 'not a text'})"
        remedy = "write one that veritracer.ledger.new_key() made"
        raise DataError(message("a file with a key", received, remedy)) from None


def load_model(folder: str) -> VeriTraCER:
    """Load a model; what is no model folder is refused before torch is imported."""
    model_folder.verified(folder)
    only_compute()
    return vt.load(folder)


def model_columns(folder: str) -> ModelColumns | Schema:
    """Return the columns of a model; torch is imported only for one that ``load`` is going to refuse."""
    return model_folder.columns(folder) or load_model(folder).schema_


# ---------------------------------------------------------------- outputs


def check_new(place: str | Path | None, *, force: bool, what: str = "a new file") -> None:
    """Refuse a file that exists, unless it may be replaced; folders and devices are left to the writer."""
    if force or place is None or str(place) == tables.STANDARD:
        return
    there = Path(place)
    if there.is_file() or (there.is_symlink() and not there.exists()):
        remedy = "name another one, or replace it with --force"
        raise DataError(message(what, f"{place}, which exists", remedy))


def check_rejects(
    rejects: Path | None, out: str | None = None, *, force: bool, continues: bool = False
) -> None:
    """Refuse a file for rejected rows that exists, is the output, or is not a CSV file.

    A run that ``continues`` writes its rejected rows anew.
    """
    if rejects is None:
        return
    if out is not None and rejects.absolute() == Path(out).absolute():
        raise DataError(message("a file of its own for rejected rows", f"{out} for both", "name another one"))
    header = f"{tables.ADDED}row,{tables.ADDED}reason".encode()
    again = continues and rejects.is_file() and rejects.read_bytes().startswith(header)
    check_new(rejects, force=force or again)
    if rejects.suffix.casefold() != ".csv":
        raise DataError(message("a .csv file for rejected rows", str(rejects), "name it rejects.csv"))


def schema_beside(model: Path) -> Path:
    """Return the place of the schema to edit: beside the model's folder, and named after it."""
    named = model if model.name not in ("", "..") else model.resolve()
    return named.with_name(f"{named.name}.schema.json")


def check_new_model(out: Path, *, force: bool) -> None:
    """Refuse a place where a model cannot be saved, or one with a model or a schema, before any training."""
    model_folder.check_target(out)
    if model_folder.is_model(out) and not force:
        remedy = "name another folder, or replace it with --force"
        raise ModelFileError(message("a new folder", f"{out}, which holds a model", remedy))
    check_new(schema_beside(out), force=force, what="no schema beside the new model")
    place = out.absolute().parent
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        received = f"{place}, which is a file"
        raise ModelFileError(message("a folder for the model", received, "choose another name"))
    probe = place / f".{out.name}.probe"
    with writable(probe):
        probe.mkdir()
        probe.rmdir()
