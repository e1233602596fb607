"""Copies of benchmarks on this machine: ``clip-tca data get`` makes them, and ``eval`` finds them.

    ROOT/NAME/                       the images as they were published; RECEIPT says where from, with hashes and counts
    ROOT/.downloads/NAME/            unfinished downloads: the next run continues them
    ROOT/.NAME.part/                 unpacking; renamed to NAME when it is complete

Mirrors are tried in turn. A mirror whose image counts differ from the published ones is not used. Only one run works on
a data set at a time; others wait.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from clip_tca.core.checks import one_line
from clip_tca.core.errors import CorruptFileError, OfflineError, is_offline
from clip_tca.core.files import PART, sha256, write_text
from clip_tca.core.folders import data_root
from clip_tca.core.network import download, hub_address, hub_reachable, told_offline
from clip_tca.core.progress import Progress, tracked
from clip_tca.data.folder import load_benchmark
from clip_tca.data.hub import load_hub
from clip_tca.data.pictures import ImageSet
from clip_tca.data.registry import BENCHMARKS, Benchmark

RECEIPT = "clip-tca.json"
DOWNLOADS = ".downloads"

DRIVE = "https://drive.usercontent.google.com/download?export=download&confirm=t&id="
"""Google Drive's address that skips its warning about large files."""

Loaded = tuple[Path, str, dict[str, str]]
"""A loaded file, its name in the data set, and its address and hash for the receipt."""


def copy_of(name: str) -> Path | None:
    """The folder of a benchmark on this machine, or None."""
    folder = data_root() / name
    return folder if folder.is_dir() and any(folder.iterdir()) else None


def load_copy(folder: Path, benchmark: Benchmark) -> ImageSet:
    """The images of a copy: published folders and arrays, or Parquet files; its origin has the receipt's mirror."""
    parquet = any(folder.rglob("*.parquet"))
    data = load_hub(str(folder), benchmark) if parquet else load_benchmark(folder, benchmark)
    if (folder / RECEIPT).is_file():
        data.origin["mirror"] = receipt(folder)["mirror"]
    return data


def receipt(folder: Path) -> dict[str, Any]:
    """What RECEIPT says: ``mirror``, ``revision``, ``files`` with their hashes, ``domains`` with their counts."""
    try:
        content: dict[str, Any] = json.loads((folder / RECEIPT).read_text(encoding="utf-8"))
        return {**content, "mirror": str(content["mirror"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(
            f"{folder / RECEIPT} can't be read ({error}); remove it, and check with data check"
        ) from None


def mirrors_of(name: str, addresses: Sequence[str] = ()) -> list[list[str]]:
    """The mirrors of a benchmark: ``addresses``, or those in the JSON file that CLIP_TCA_MIRRORS names, or known ones.

    A mirror is a list of archives and other files that are the data set together, each by its address, which may end in
    the published hash (``#md5=DIGITS``), or by its path; or it is one OWNER/NAME[@REVISION] on the hub.
    """
    own = os.environ.get("CLIP_TCA_MIRRORS")
    listed: Sequence[Any] = addresses or (BENCHMARKS[name].mirrors if name in BENCHMARKS else ())
    if own and not addresses:
        try:
            listed = dict(json.loads(Path(own).expanduser().read_text(encoding="utf-8"))).get(name, listed)
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(
                f'CLIP_TCA_MIRRORS: {own}: {error}; a JSON file like {{"vlcs": ["https://…/VLCS.tar.gz"]}} is needed'
            ) from None
    mirrors = [[mirror] if isinstance(mirror, str) else list(mirror) for mirror in listed]
    for address in (address for mirror in mirrors for address in mirror):
        if not (_is_hub(address) or re.match("https?://", address) or Path(address).expanduser().is_file()):
            raise ValueError(
                f"mirror: {address!r}; allowed are http(s) addresses, files that exist, and OWNER/NAME[@REVISION]"
            )
    return mirrors


def _is_hub(address: str) -> bool:
    path = Path(address).expanduser()
    return bool(re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", address)) and not path.suffix and not path.is_file()


def _title(mirror: list[str]) -> str:
    return mirror[0].partition("#")[0] + (f" and {len(mirror) - 1} more" if len(mirror) > 1 else "")


def get(name: str, mirrors: list[list[str]], root: Path | None = None, progress: bool = False) -> Path:
    """Get a benchmark into ``root/name``, from the first mirror that has the complete data set.

    An existing folder is used, and counted if it has no receipt. ValueError names every mirror and why it failed.
    """
    benchmark, root = BENCHMARKS[name], root or data_root()
    folder, reasons, online = root / name, [], not mirrors
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f".{name}.lock"):
        if (folder / RECEIPT).is_file():
            return folder
        if folder.exists():
            try:
                _count(folder, benchmark, {"mirror": "put there by hand"}, progress)
                return folder
            except (ValueError, OSError) as error:
                raise ValueError(f"{folder} is there already, but {one_line(error)}; move it away first") from None
        for mirror in mirrors:
            try:
                _get(mirror, benchmark, root, progress)
                return folder
            except (ValueError, OSError) as error:
                reasons.append(f"\n  {_title(mirror)}: {one_line(error)}")
                online = online or not isinstance(error, OfflineError)
    raise (ValueError if online else OfflineError)(
        f"{name} could not be downloaded from any of its {len(reasons)} mirrors; give your copy by --data-dir DIR, or "
        f"clip-tca data get {name} --mirror ARCHIVE{''.join(reasons)}\n  the folder must look like {benchmark.layout()}"
    )


def _get(mirror: list[str], benchmark: Benchmark, root: Path, progress: bool) -> None:
    folder, stage = root / benchmark.name, root / f".{benchmark.name}{PART}"
    downloads = root / DOWNLOADS / benchmark.name
    downloads.mkdir(parents=True, exist_ok=True)
    if _is_hub(mirror[0]):
        revision, files = _load_hub(mirror[0], benchmark.split, downloads, progress)
    else:
        revision, files = None, [_load(address, downloads, progress) for address in mirror]
    shutil.rmtree(stage, ignore_errors=True)
    try:
        for path, name, _ in files:
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            if path.suffix in (".parquet", ".txt", ".npy"):
                shutil.copyfile(path, stage / name)
            else:
                with Progress(None, f"unpacking {name}", "file", progress):
                    unpack(path, stage)
        os.replace(stage, folder)
        about = {"mirror": _title(mirror), "revision": revision, "files": [hashes for _, _, hashes in files]}
        _count(folder, benchmark, about, progress)
        shutil.rmtree(downloads, ignore_errors=True)
    except ValueError:  # what was loaded is not the data set; after any other end it is worth keeping
        shutil.rmtree(folder, ignore_errors=True)
        for path, _, _ in files:
            if path.is_relative_to(downloads):
                path.unlink()
        raise
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _load(address: str, downloads: Path, progress: bool) -> Loaded:
    url, _, md5 = address.partition("#md5=")
    name = re.sub(r"[^\w.-]", "", url.split("?")[0].rstrip("/").rpartition("/")[2])[-60:] or "file"
    path = Path(url).expanduser()
    if path.is_file():
        return path, name, {"url": url, "sha256": sha256(path)}
    path = downloads / f"{hashlib.sha256(url.encode()).hexdigest()[:8]}-{name}"
    page = re.search(r"//drive\.google\.com/.*?(?:id=|/d/)([\w-]{10,})", url)
    download(f"{DRIVE}{page[1]}" if page else url, path, md5, progress)
    return path, name, {"url": url, "sha256": sha256(path)}


def _load_hub(address: str, split: str | None, downloads: Path, progress: bool) -> tuple[str, list[Loaded]]:
    """The commit, and the Parquet files in it, only those of ``split`` if their names have it."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if told_offline() or not hub_reachable():
        raise OfflineError("HF_HUB_OFFLINE is set" if told_offline() else f"{hub_address()} can't be reached")
    disable_progress_bars()
    hub_id, _, revision = address.partition("@")
    hub, files = HfApi(endpoint=hub_address()), []
    try:
        about = hub.dataset_info(hub_id, revision=revision or None, files_metadata=True)
        known = {file.rfilename: file.lfs for file in about.siblings or () if file.rfilename.endswith(".parquet")}
        names = [name for name in known if split and split in name] or list(known)
        for name in tracked(names, len(names), f"loading {hub_id}", "file", progress):
            path = Path(hub.hf_hub_download(hub_id, name, repo_type="dataset", revision=about.sha, local_dir=downloads))
            digest, published = sha256(path), getattr(known[name], "sha256", None)
            if published not in (None, digest):
                path.unlink()
                raise ValueError(f"the SHA-256 of {name} is {digest}, not {published} as published")
            files.append((path, name, {"url": f"{hub_id}/{name}", "sha256": digest}))
    except Exception as error:  # of the hub's client, or of the library below it
        raise (OfflineError if is_offline(error) else ValueError)(one_line(error)) from error
    if not files:
        raise ValueError("it has no Parquet files")
    return str(about.sha), files


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip or tar archive, whatever its name; nothing is written outside ``folder``; ValueError if damaged."""
    try:
        if zipfile.is_zipfile(archive):
            shutil.unpack_archive(archive, folder, "zip")  # it leaves out what would lead out of the folder
        elif tarfile.is_tarfile(archive):
            shutil.unpack_archive(archive, folder, "tar", filter="data")
        else:
            raise ValueError(f"{archive.name} is neither a zip or tar archive nor a Parquet file")
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:
        raise CorruptFileError(f"{archive.name} is damaged or not safe ({one_line(error)})") from None


def _count(folder: Path, benchmark: Benchmark, about: dict[str, Any], progress: bool) -> None:
    """Compare with the published counts, then write the receipt: the last step."""
    with Progress(None, f"counting {benchmark.name}", "image", progress):
        try:
            data = load_copy(folder, benchmark.only() if benchmark.corrupted else benchmark)
        except FileNotFoundError:
            raise ValueError(f"it does not look like {benchmark.layout()}") from None
        if wrong := data.differences():
            raise ValueError(f"it is not complete ({'; '.join(wrong[:3])}{'; …' if wrong[3:] else ''})")
        domains = {
            name: {"images": len(domain), "files_sha256": domain.fingerprint()} for name, domain in data.domains.items()
        }
    content = {"dataset": data.name, **about, "domains": domains}
    write_text(folder / RECEIPT, json.dumps(content, indent=1) + "\n")
