"""Files from mirrors: resumed where the connection broke, with progress, and kept only if the checksum is right."""

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from initmem.config import InitmemError, cache_dir, writing

TIMEOUT = 30  # seconds without a byte before a connection counts as lost
TRIES = 3  # connections to one mirror, each resuming where the last one broke off


def _md5(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def download(file: str, md5: str, urls: Sequence[str], again: str, progress: bool) -> Path:
    """`file` in the cache's downloads folder, its checksum right: as it lies there, or from the first mirror that has it.

    Raises InitmemError if none delivers, naming file, folder, addresses and `again`, the command to give once it is there.
    """
    folder = cache_dir("downloads")
    target, part = folder / file, folder / f"{file}.part"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for local in (target, part):
            if local.is_file() and _md5(local) == md5:
                local.replace(target)
                return target
    failures = {}
    for url in urls:
        for _ in range(TRIES):
            resumed = part.exists()
            try:
                _resume(url, part, progress)
            except urllib.error.HTTPError as error:
                failures[url] = f"HTTP {error.code} {error.reason}"
                if error.code != 416:  # 416: nothing left to send, so the part is not a piece of this file
                    break
                part.unlink(missing_ok=True)
            except (OSError, http.client.HTTPException) as error:
                failures[url] = str(error) or type(error).__name__
            else:
                if _md5(part) == md5:
                    with writing(folder):
                        part.replace(target)
                    return target
                failures[url] = "wrong checksum"
                part.unlink()
                if not resumed:  # else the fault may lie in the old part: try once more from the beginning
                    break
    reasons = "; ".join(f"{url}: {why}" for url, why in failures.items())
    raise InitmemError(
        f"could not download {file} ({reasons}): get it from one of these addresses by other means, "
        f"put it into {folder} and run `{again}` again"
    )


def _resume(url: str, part: Path, progress: bool) -> None:
    """Add to `part` what it lacks of the file at `url`. Raises OSError or HTTPException if the connection fails."""
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "initmem"} | ({"Range": f"bytes={start}-"} if start else {})
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT) as response:
        if response.headers.get("Content-Range", "").split("-")[0] != f"bytes {start}":
            start = 0  # the server sends the whole file
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        with writing(part.parent):
            stream = part.open("ab" if start else "wb")
        with stream, tqdm(
            total=total, initial=start, unit="B", unit_scale=True, desc=part.stem, disable=not progress, leave=False
        ) as bar:
            while block := response.read(1 << 16):
                with writing(part.parent):
                    stream.write(block)
                bar.update(len(block))
    if total is not None and (size := part.stat().st_size) < total:
        raise ConnectionError(f"connection lost after {size:,} of {total:,} bytes")
