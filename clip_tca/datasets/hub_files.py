"""The files of a data set on the Hugging Face hub, with the hashes that the hub knows."""

from __future__ import annotations

import json
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from clip_tca.core.checks import one_line
from clip_tca.core.download import TIMEOUT, DownloadError
from clip_tca.core.hub_access import hub_address, told_offline
from clip_tca.datasets.mirrors import RemoteFile


def hub_files(hub_id: str, revision: str | None, split: str | None) -> tuple[str, tuple[RemoteFile, ...]]:
    """The commit, and the Parquet files in it, only of ``split`` if their names have it; DownloadError if none."""
    if told_offline():
        raise DownloadError("HF_HUB_OFFLINE is set")
    endpoint = hub_address()
    address = f"{endpoint}/api/datasets/{hub_id}/revision/{quote(revision or 'main', safe='')}?blobs=true"
    try:
        with urlopen(Request(address, headers=hub_headers()), timeout=TIMEOUT) as answer:  # noqa: S310
            about = json.load(answer)
        commit, entries = str(about["sha"]), list(about["siblings"])
    except HTTPError as error:
        reason = error.headers.get("X-Error-Message") or error.reason
        raise DownloadError(f"HTTP {error.code} {one_line(reason)}") from None
    except (URLError, OSError, ValueError, KeyError, TypeError) as error:
        raise DownloadError(one_line(getattr(error, "reason", error))) from None
    entries = [entry for entry in entries if entry["rfilename"].endswith(".parquet")]
    entries = [entry for entry in entries if split and split in entry["rfilename"]] or entries
    if not entries:
        raise DownloadError("it has no Parquet files")
    place = f"{endpoint}/datasets/{hub_id}/resolve/{commit}"
    files = []
    for entry in entries:
        known = (entry.get("lfs") or {}).get("sha256")
        files.append(RemoteFile(f"{place}/{quote(entry['rfilename'])}", {"sha256": known} if known else {}))
    return commit, tuple(files)


def hub_headers() -> dict[str, str]:
    """The user's token, if there is one."""
    from huggingface_hub import get_token

    token = get_token()
    return {"Authorization": f"Bearer {token}"} if token else {}
