"""Memory of the C library: large blocks that were freed are used again."""

from __future__ import annotations

import ctypes
import sys

LARGE = 32 << 20
"""The largest limit that glibc accepts; no block of embeddings of the usual dimensions is above it."""

KEPT = 256 << 20
"""Bytes of freed memory that are kept at most."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def reuse_large_blocks() -> None:
    """Have the C library keep freed blocks for the next of their size, of whichever thread, where it is glibc.

    Blocks of embeddings come and go all the time. By default large ones are given back to the system, which clears
    every page when they are taken again; and every thread keeps its own, so that memory would grow with the threads.
    """
    if sys.platform == "linux":
        try:
            mallopt = ctypes.CDLL(None).mallopt
        except (AttributeError, OSError):  # another C library
            return
        for option, value in ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, LARGE), (_M_TRIM_THRESHOLD, KEPT)):
            mallopt(option, value)
