"""Read and write model folders: ``model.safetensors`` and ``model.json``, never pickle.

``model.json`` holds the schema, the encoding, the configuration, the versions and two digests: one of the
file of tensors, one of everything else. Loading checks both. Saving writes a new folder beside the old one
and swaps them by renaming; after a crash there is the old folder, the new one, or the old one under its
``.previous`` name, where loading finds it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from veritracer import __version__
from veritracer.errors import ModelFileError, message
from veritracer.files import envelope, is_special, write_whole

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "veritracer-model"
VERSION = 1
TENSORS, DOCUMENT = "model.safetensors", "model.json"
SCHEMA = "schema.json"
"""A schema that somebody put into the folder; the model's own is in ``model.json``."""
KEYS = {"format", "version", "digest", "tensors_sha256", "content"}


def write(
    folder: str | os.PathLike[str],
    content: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    beside: Mapping[str, str] | None = None,
) -> Path:
    """Write JSON ``content`` and ``tensors`` as a model folder, atomically, and return its path.

    ``beside`` has the texts of further files in the folder by their names.
    """
    target = Path(folder)
    check_target(target)
    from safetensors.torch import save

    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        data = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
        document = {**envelope(FORMAT, VERSION), "tensors_sha256": _sha(data), "content": content}
        document["digest"] = _digest(document)
        write_whole(fresh / TENSORS, data)
        write_whole(fresh / DOCUMENT, json.dumps(document, indent=1, ensure_ascii=False))
        for name, text in (beside or {}).items():
            write_whole(fresh / name, text)
        fresh.chmod(0o755)
        _exchange(fresh, target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def check_target(target: Path) -> None:
    """Refuse a place that is neither free nor a saved model, which saving replaces."""
    remedy = "choose another name"
    if target.exists() and not target.is_dir():
        raise ModelFileError(message("a folder for the model", f"the file {target}", remedy))
    if target.is_dir() and not is_model(target) and any(target.iterdir()):
        received = f"the folder {target} with other files"
        raise ModelFileError(message("a new folder or a saved model to replace", received, remedy))


def is_model(folder: Path) -> bool:
    """Return whether a folder seems to hold a saved model."""
    return (folder / DOCUMENT).exists()


def read(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the content and the tensors of a model folder, and check both digests."""
    content, data = verified(folder)
    from safetensors import SafetensorError
    from safetensors.torch import load  # here: it imports torch, and damage is found without

    try:
        return content, load(data)
    except (SafetensorError, ValueError) as error:
        raise _damaged(_present(folder) / TENSORS, "a safetensors file", str(error)) from error


def verified(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], bytes]:
    """Read the content of a model folder and the bytes of its tensors, and check both digests."""
    target = _present(folder)
    document = _document(target)
    data = _bytes(target / TENSORS)
    if _sha(data) != document["tensors_sha256"]:
        raise _damaged(target / TENSORS, "tensors with the digest in model.json", "others")
    _check_schema(target, document["content"])
    return document["content"], data


def _check_schema(target: Path, content: Mapping[str, Any]) -> None:
    """Refuse a schema in the folder that is not the model's: nothing would read what was edited."""
    place = target / SCHEMA
    if not place.is_file():
        return
    try:
        same = json.loads(place.read_bytes()) == content["encoding"]["schema"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        same = False
    if not same:
        remedy = f"move it to {target.name}.schema.json beside the folder, and pass it to fit with --schema"
        raise ModelFileError(message("the model's own schema", f"another one in {place}", remedy))


class ModelColumns(NamedTuple):
    """Columns of the table that a model reads: its features, the target, and ignored columns."""

    names: tuple[str, ...]
    target: str | None
    ignored_names: tuple[str, ...] = ()


def columns(folder: str | os.PathLike[str]) -> ModelColumns | None:
    """Read the columns of a saved model without torch; None if ``load`` will refuse the model."""
    content, _ = verified(folder)
    try:
        schema = content["encoding"]["schema"]
        ignored = tuple(schema.get("ignored", {}))
        names = tuple(feature["name"] for feature in schema["features"])
        return ModelColumns(names, schema["target"], ignored)
    except (LookupError, TypeError, AttributeError):
        return None


def _present(folder: str | os.PathLike[str]) -> Path:
    """Return the folder of the model: after a crash between two renames that is the previous one."""
    target = Path(folder)
    return _previous(target) if not target.exists() and _previous(target).is_dir() else target


def _document(target: Path) -> dict[str, Any]:
    """Read ``model.json``, and check its format, version and digest."""
    data = _bytes(target / DOCUMENT)
    try:
        document = json.loads(data)
        digest = _digest(document) if isinstance(document, dict) else None
    except (ValueError, RecursionError) as error:
        raise _damaged(target / DOCUMENT, "JSON", str(error)) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _damaged(target / DOCUMENT, f"a {FORMAT}", "another document")
    if document.get("version") != VERSION:
        received = repr(document.get("version"))
        raise ModelFileError(
            message(f"version {VERSION} of {FORMAT}", received, "load it with the release that wrote it")
        )
    if set(document) != KEYS or document["digest"] != digest:
        raise _damaged(target / DOCUMENT, "content with the stated digest", "altered content")
    return document


def _bytes(path: Path) -> bytes:
    try:
        if is_special(path):  # reading a pipe or a device might never end
            raise _damaged(path, "a regular file", "a pipe or a device")
        return path.read_bytes()
    except OSError as error:
        found = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        received = f"{path.parent} with {', '.join(found[:4])}" if found else f"no {path}"
        remedy = "pass a folder that model.save() wrote; pickle files are not supported"
        raise ModelFileError(message(f"a model folder with {path.name}", received, remedy)) from error


def _damaged(path: Path, expected: str, received: str) -> ModelFileError:
    remedy = "the file was changed or truncated after it was saved: restore it from a backup"
    return ModelFileError(message(f"{expected} in {path}", received, remedy))


def _digest(document: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in document.items() if name != "digest"}
    return _sha(json.dumps(kept, sort_keys=True, ensure_ascii=False).encode())


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _previous(target: Path) -> Path:
    return target.with_name(f".{target.name}.previous")


def _exchange(fresh: Path, target: Path) -> None:
    """Replace ``target`` by ``fresh``, by renaming alone."""
    previous = _previous(target)
    if target.exists():
        shutil.rmtree(previous, ignore_errors=True)
        target.rename(previous)
    fresh.rename(target)
    shutil.rmtree(previous, ignore_errors=True)


def versions() -> dict[str, str]:
    """Return the versions of this package and of torch."""
    import torch

    return {"veritracer": __version__, "torch": torch.__version__}
