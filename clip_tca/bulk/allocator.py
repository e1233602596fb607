"""Memory of the C library: large blocks are given back as soon as they are freed."""

from __future__ import annotations

import ctypes
import sys

LARGE = 1 << 22
_M_MMAP_THRESHOLD = -3


def return_large_blocks() -> None:
    """Have the C library give back every block of 4 MB and more at once, where it is glibc.

    By default it raises that limit as blocks are freed and keeps them, once per thread: up to 100 MB that come and go
    with the timing of the threads.
    """
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE)
        except (AttributeError, OSError):  # another C library
            return
