"""Errors that a caller can catch apart from bad input, which is a plain ValueError or TypeError.

ClipTcaError
├── OfflineError          also a ConnectionError and a ValueError
└── CorruptFileError      also a ValueError
"""

from __future__ import annotations

import re

_NETWORK = re.compile("Connect|Timeout|Offline|LocalEntryNotFound|URLError|gaierror")
"""In the class names of network errors: every library has its own classes."""


class ClipTcaError(Exception):
    """Base class of the errors that are not the caller's mistake."""


class OfflineError(ClipTcaError, ConnectionError, ValueError):
    """The hub, a mirror or an object store can't be reached, and there is no copy on this machine."""


class CorruptFileError(ClipTcaError, ValueError):
    """A file is cut short, damaged, or not what its name says."""


def is_offline(error: BaseException | None) -> bool:
    """Whether an error, or one that caused it, says that the network can't be reached."""
    # not the context: it may be an error that the caller handles just now, by loading something else
    return error is not None and (bool(_NETWORK.search(type(error).__name__)) or is_offline(error.__cause__))
