"""The file of a dataset: read if it is the file that it should be, downloaded where that needs no login.

Content is checked before anything is written.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import os
import urllib.error
import urllib.parse
import urllib.request
import zlib
from pathlib import Path

import pandas as pd

from veritracer.datasets.catalogue import Source, file_name, source_of
from veritracer.errors import DatasetError, message
from veritracer.files import write_whole


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


# ---------------------------------------------------------------- downloads


_TIMEOUT = 30.0
_MOST_BYTES = 64 * 2**20  # ten times the largest of the files


def fetch(name: str, *, data_dir: str | os.PathLike[str], url: str | None = None) -> Path:
    """The path of the dataset's file in ``data_dir``, after it was downloaded and its checksum was right.

    ``url`` names a mirror (http or https). Nothing is written unless the content is the known one.
    """
    source = source_of(name)
    if not source.sha256_text:
        raise DatasetError(message("a dataset that has a file", repr(name), source.how))
    address = url if url is not None else source.url
    if address is None:
        remedy = f"{source.how}, store it as {file_name(name)} in the data folder, or pass url= of a mirror"
        raise DatasetError(message("a dataset with a download that needs no login", repr(name), remedy))
    text = _normalised(_download(address), source)
    if digest(text) != source.sha256_text:
        raise DatasetError(
            message(
                f"content with the sha256 {source.sha256_text[:12]}…",
                f"{digest(text)[:12]}… from {address}",
                "it is cut, altered or another version; nothing was written: try again or use a mirror",
            )
        )
    return _write(Path(data_dir), file_name(name), gzip.compress(text, mtime=0))


def _download(address: str) -> bytes:
    if urllib.parse.urlsplit(address).scheme not in ("http", "https"):
        raise DatasetError(message("an http or https address", repr(address), "download the file yourself"))
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT) as answer:
            content = answer.read(_MOST_BYTES + 1)
            promised = answer.headers.get("Content-Length")
    except urllib.error.HTTPError as error:
        error.close()
        raise _no_answer(address, f"HTTP {error.code}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:  # timeouts and refusals are OSError
        raise _no_answer(address, str(error) or type(error).__name__) from None
    if len(content) > _MOST_BYTES:
        raise DatasetError(
            message("a file of at most 64 MiB", f"more from {address}", "is this the right address?")
        )
    if promised is not None and promised.isdigit() and len(content) != int(promised):
        got = f"{len(content):,} of {int(promised):,} bytes from {address}"
        raise DatasetError(message("the whole file", got, "the connection broke off: try again"))
    return bytes(content)


def _no_answer(address: str, reason: str) -> DatasetError:
    remedy = "check the connection, or pass url= of a mirror"
    return DatasetError(message(f"an answer from {address}", reason, remedy))


def _normalised(content: bytes, source: Source) -> bytes:
    """The text as our checksums know it: no byte order mark, LF, a final newline, the known header."""
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError):
            return content  # its checksum will be wrong, and the message says so
    text = content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").rstrip(b"\n") + b"\n"
    first, _, rest = text.partition(b"\n")
    header = source.header.encode()
    return header + b"\n" + rest if first.count(b",") == header.count(b",") else text


def _write(folder: Path, name: str, content: bytes) -> Path:
    try:
        return write_whole(folder / name, content)
    except OSError as error:
        raise DatasetError(
            message(f"a folder that can be written, {folder}", str(error), "pass another one")
        ) from None
