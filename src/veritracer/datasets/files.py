"""The text of a dataset's file, if it is the file that it should be."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from pathlib import Path

import pandas as pd

from veritracer.datasets.catalogue import file_name, source_of
from veritracer.errors import DatasetError, message


def read(name: str, folder: Path) -> pd.DataFrame:
    """The raw table of ``name``; refuses a file that is absent, damaged or altered."""
    source = source_of(name)
    path = folder / file_name(name)
    if not path.is_file():
        raise DatasetError(
            message(
                f"the file {path}", "nothing there", f"{source.how}, and store it gzipped under this name"
            )
        )
    packed = path.read_bytes()
    try:
        text = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        remedy = f"get it again: {source.how}"
        raise DatasetError(message(f"{path} in gzip format", f"a damaged file ({error})", remedy)) from None
    if digest(packed) != source.sha256_gz and digest(text) != source.sha256_text:
        raise DatasetError(
            message(
                f"{path} with the sha256 {source.sha256_text[:12]}… (unpacked)",
                f"{digest(text)[:12]}…: its content was altered or is another version",
                f"get it again: {source.how}",
            )
        )
    return pd.read_csv(io.BytesIO(text))


def digest(content: bytes) -> str:
    """The sha256 in hex."""
    return hashlib.sha256(content).hexdigest()
