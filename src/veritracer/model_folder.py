"""A model on disk: a folder with ``model.safetensors`` and ``model.json``. Never pickle.

``model.json`` holds the schema, the encoding, the configuration, the versions and two digests: of the
tensors' file, and of everything else. Loading checks both. Saving writes a new folder beside the old
one and exchanges them by renaming; a crash leaves the old one, or the new one, or the old one under its
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
from veritracer.files import envelope, write_whole

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "veritracer-model"
VERSION = 1
TENSORS, DOCUMENT = "model.safetensors", "model.json"
KEYS = {"format", "version", "digest", "tensors_sha256", "content"}


def write(
    folder: str | os.PathLike[str],
    content: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    beside: Mapping[str, str] | None = None,
) -> Path:
    """Save plain ``content`` and ``tensors`` as the model folder; returns where.

    ``beside`` has texts for other files of the folder by their names: all are there, or none is.
    """
    target = Path(folder)
    if (
        target.exists()
        and not (target / DOCUMENT).exists()
        and any(target.iterdir() if target.is_dir() else [1])
    ):
        received = f"{target}, which is something else"
        raise ModelFileError(
            message("a new folder or a saved model to replace", received, "choose another name")
        )
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


def read(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The content and the tensors of a model folder, refused unless both are what was written."""
    content, data = verified(folder)
    from safetensors import SafetensorError
    from safetensors.torch import load  # here: it brings torch, and a damaged folder is refused without

    try:
        return content, load(data)
    except (SafetensorError, ValueError) as error:
        raise _damaged(_present(folder) / TENSORS, "a safetensors file", str(error)) from error


def verified(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], bytes]:
    """The content of a model folder and the bytes of its tensors, both with the digests that they had."""
    target = _present(folder)
    document = _document(target)
    data = _bytes(target / TENSORS)
    if _sha(data) != document["tensors_sha256"]:
        raise _damaged(target / TENSORS, "tensors with the digest in model.json", "other ones")
    return document["content"], data


class Columns(NamedTuple):
    """The columns of the table that a model reads: its features, the target, and what it ignores."""

    names: tuple[str, ...]
    target: str | None
    ignored_names: tuple[str, ...] = ()


def columns(folder: str | os.PathLike[str]) -> Columns | None:
    """The columns of a saved model, known before torch is; None of a model that ``load`` will refuse."""
    content, _ = verified(folder)
    try:
        schema = content["encoding"]["schema"]
        ignored = tuple(column["name"] for column in schema.get("ignored", ()))
        names = tuple(feature["name"] for feature in schema["features"])
        return Columns(names, schema["target"], ignored)
    except (LookupError, TypeError, AttributeError):
        return None


def _present(folder: str | os.PathLike[str]) -> Path:
    """Where the model is: after a crash between two renames the old one is whole, under another name."""
    target = Path(folder)
    return _previous(target) if not target.exists() and _previous(target).is_dir() else target


def _document(target: Path) -> dict[str, Any]:
    """``model.json``, with its format, version and digest checked."""
    data = _bytes(target / DOCUMENT)
    try:
        document = json.loads(data)
    except (ValueError, UnicodeDecodeError) as error:
        raise _damaged(target / DOCUMENT, "JSON", str(error)) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _damaged(target / DOCUMENT, f"a {FORMAT}", "something else")
    if document.get("version") != VERSION:
        received = repr(document.get("version"))
        raise ModelFileError(
            message(f"version {VERSION} of {FORMAT}", received, "load it with the release that wrote it")
        )
    if set(document) != KEYS or document["digest"] != _digest(document):
        raise _damaged(target / DOCUMENT, "the content that its digest names", "an altered one")
    return document


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        found = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        received = f"{path.parent} with {', '.join(found[:4]) or 'nothing in it'}" if found else f"no {path}"
        remedy = "pass a folder that model.save() wrote; pickle is never read"
        raise ModelFileError(message(f"a model folder with {path.name}", received, remedy)) from error


def _damaged(path: Path, expected: str, received: str) -> ModelFileError:
    remedy = "it was changed or cut off after it was saved: take it from a backup"
    return ModelFileError(message(f"{expected} in {path}", received, remedy))


def _digest(document: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in document.items() if name != "digest"}
    return _sha(json.dumps(kept, sort_keys=True, ensure_ascii=False).encode())


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _previous(target: Path) -> Path:
    return target.with_name(f".{target.name}.previous")


def _exchange(fresh: Path, target: Path) -> None:
    """Put ``fresh`` in the place of ``target`` by renaming alone."""
    previous = _previous(target)
    if target.exists():
        shutil.rmtree(previous, ignore_errors=True)
        target.rename(previous)
    fresh.rename(target)
    shutil.rmtree(previous, ignore_errors=True)


def versions() -> dict[str, str]:
    """The versions that a model was made with."""
    import torch

    return {"veritracer": __version__, "torch": torch.__version__}
