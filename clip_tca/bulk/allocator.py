"""Memory that stays where it is, however many blocks come and go."""

from __future__ import annotations

import ctypes
import sys

LARGE = 1 << 22
_M_MMAP_THRESHOLD = -3


def return_large_blocks() -> None:
    """Have the C library give back every block of 4 MB and more at once, where it is glibc.

    By itself it raises that limit as blocks are freed, then keeps them, in as many places as there are threads: up to
    100 MB that come and go with the timing of the threads.
    """
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE)
        except (AttributeError, OSError):  # another C library
            return
