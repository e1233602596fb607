"""Where copies of the benchmarks can be had: hub ids, then published archives, in the order in which they are tried.

A revision or hash stands here only where public sources agree on it; for other files it is computed and recorded, and
the images are counted. The addresses are those of the authors, of DomainBed's download script, and of the copies that
people gave in its issue 165 when the old links had died.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

DRIVE = "https://drive.usercontent.google.com/download?export=download&confirm=t&id="
"""Google Drive, past the page that asks whether a large file may be loaded."""


@dataclass(frozen=True)
class RemoteFile:
    """A file to load: an archive to unpack, or a file as it is, into the folder ``into`` of the data set.

    ``hashes`` are published ones, such as ``{"md5": "…"}``; ``url`` may be a local file too.
    """

    url: str
    hashes: dict[str, str] = field(default_factory=dict)
    into: str = ""

    @property
    def address(self) -> str:
        """Where to load it from: for a page of Google Drive, the file behind it."""
        page = re.search(r"//drive\.google\.com/.*?(?:id=|/d/)([\w-]{10,})", self.url)
        return f"{DRIVE}{page[1]}" if page else self.url

    @property
    def name(self) -> str:
        """A name for it on disk, the same in every run, and another for another address."""
        tail = re.sub(r"[^\w.-]", "", self.url.split("?")[0].rstrip("/").rpartition("/")[2])
        return f"{hashlib.sha256(self.url.encode()).hexdigest()[:8]}-{tail[-60:] or 'file'}"


@dataclass(frozen=True)
class Mirror:
    """One place that has the whole data set: a repository on the hub, or files."""

    hub_id: str = ""
    revision: str | None = None
    files: tuple[RemoteFile, ...] = ()

    def __str__(self) -> str:
        if self.hub_id:
            return f"{self.hub_id} on the hub" + (f" at {self.revision[:12]}" if self.revision else "")
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return f"{self.files[0].url}{more}"

    @classmethod
    def at(cls, address: str) -> Mirror:
        """A mirror of the user's own: address or path of an archive, or OWNER/NAME[@REVISION] on the hub."""
        local = Path(address).expanduser()
        if re.match(r"https?://", address) or local.is_file():
            return cls(files=(RemoteFile(str(local) if local.is_file() else address),))
        if re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", address) and not local.suffix:
            hub_id, _, revision = address.partition("@")
            return cls(hub_id, revision or None)
        raise ValueError(
            f"mirror: {address!r}; allowed are http(s) addresses, files that exist, and OWNER/NAME[@REVISION]"
        )


def mirrors_of(name: str) -> tuple[Mirror, ...]:
    """The mirrors of a benchmark: yours, if the JSON file that CLIP_TCA_MIRRORS names has some, else those below."""
    own = os.environ.get("CLIP_TCA_MIRRORS")
    if own:
        try:
            listed = dict(json.loads(Path(own).expanduser().read_text(encoding="utf-8")))
            if name in listed:
                return tuple(Mirror.at(address) for address in listed[name])
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(
                f'CLIP_TCA_MIRRORS: {own}: {error}; a JSON file like {{"vlcs": ["https://…/VLCS.tar.gz"]}} is needed'
            ) from None
    return MIRRORS.get(name, ())


def _archive(url: str, md5: str = "", into: str = "") -> Mirror:
    return Mirror(files=(_file(url, md5, into),))


def _file(url: str, md5: str = "", into: str = "") -> RemoteFile:
    return RemoteFile(url, {"md5": md5} if md5 else {}, into)


def _drive(identity: str, md5: str = "") -> Mirror:
    return _archive(f"https://drive.google.com/uc?id={identity}", md5)


def _zenodo(record: int, files: dict[str, str]) -> Mirror:
    place = f"https://zenodo.org/records/{record}/files"
    return Mirror(files=tuple(_file(f"{place}/{name}?download=1", md5) for name, md5 in files.items()))


_VISDA = "http://csr.bu.edu/ftp/visda/2019/multi-source"
_WJD = "https://wjdcloud.blob.core.windows.net/dataset"
_DOMAINNET = {  # archive, its MD5, and that of the list of test images
    "clipart": ("groundtruth/clipart.zip", "cd0d8f2d77a4e181449b78ed62bccf1e", "f5ddbcfd657a3acf9d0f7da10db22565"),
    "infograph": ("infograph.zip", "720380b86f9e6ab4805bb38b6bd135f8", "779626b50869edffe8ea6941c3755c71"),
    "painting": ("groundtruth/painting.zip", "1ae32cdb4f98fe7ab5eb0a351768abfd", "232b35dc53f26d414686ae579e38d9b5"),
    "quickdraw": ("quickdraw.zip", "bdc1b6f09f277da1a263389efe0c7a66", "c1a828fdfe216fb109f1c0083a252c6f"),
    "real": ("real.zip", "dcc47055e8935767784b7162e7c7cca6", "6098816791c3ebed543c71ffa11b9054"),
    "sketch": ("sketch.zip", "658d8009644040ff7ce30bb2e820850f", "d8a222e4672cfd585298aa14d02ea441"),
}

MIRRORS: dict[str, tuple[Mirror, ...]] = {
    "pacs": (
        Mirror("flwrlabs/pacs"),
        _drive("1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd"),
        _drive("1WWi9tuUNFmUiw7Eirq_JT_hxYZv3J-Vv"),
        _archive(f"{_WJD}/PACS.zip"),
    ),
    "officehome": (
        Mirror("flwrlabs/office-home", "d430d44779e929b335be368ab3456484e5de36bb"),
        _drive("1uY0pj7oFsjMxRwaD3Sxy0jgel0fsYXLC"),
        _drive("1USXqK4nCvOAR5Ty4iwKcuCOrRJoRuDyU"),
        _archive(f"{_WJD}/OfficeHome.zip"),
    ),
    "vlcs": (
        Mirror("ai22mtech12002/DG_VLCS"),
        _drive("1skwblH1_okBwxWxmRsp9_qi15hyPpxg8", "8870171eba660927d9668f4e515928e4"),
        _drive("1yDuLrJdPSvMbTmpq-7XmwG0HnJengD-T"),
    ),
    "domainnet": (
        Mirror("wltjr1007/DomainNet"),
        Mirror(
            files=tuple(
                file
                for name, (archive, md5, listed) in _DOMAINNET.items()
                for file in (
                    _file(f"{_VISDA}/{archive}", md5),
                    _file(f"{_VISDA}/domainnet/txt/{name}_test.txt", listed, "splits"),
                )
            )
        ),
    ),
    "office31": (_drive("0B4IapRTv9pJ1WGZVd1VDMmhwdlE"), _archive(f"{_WJD}/OFFICE31.zip")),
    "cifar10-c": (_zenodo(2535967, {"CIFAR-10-C.tar": "56bf5dcef84df0e2308c6dcbcbbd8499"}),),
    "cifar100-c": (_zenodo(3555552, {"CIFAR-100-C.tar": "11f0ed0f1191edbf9fa23466ae6021d3"}),),
    "imagenet-c": (
        _zenodo(
            2235448,
            {
                "blur.tar": "2d8e81fdd8e07fef67b9334fa635e45c",
                "digital.tar": "89157860d7b10d5797849337ca2e5c03",
                "noise.tar": "e80562d7f6c3f8834afb1ecf27252745",
                "weather.tar": "33ffea4db4d93fe4a428c40a6ce0c25d",
            },
        ),
    ),
}
