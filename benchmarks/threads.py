"""Small matrices on two threads beside a busy process: torch's own eigenvectors, and those that TCA asks for."""

from __future__ import annotations

import os
import subprocess
import sys

import torch

from benchmarks.measure import Row, wall
from clip_tca.symmetric import eigh


def rows(quick: bool) -> list[Row]:
    """How many times longer torch.linalg.eigh takes on two threads, with every core busy."""
    threads = torch.get_num_threads()
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    found = []
    try:
        torch.set_num_threads(2)
        for dim in (128, 512):
            a = torch.randn(dim, dim, dtype=torch.float64)
            sigma = a @ a.T
            theirs, ours = [], []
            for _ in range(3 if quick else 9):
                theirs.append(wall(lambda: torch.linalg.eigh(sigma)))  # noqa: B023
                ours.append(wall(lambda: eigh(sigma)))  # noqa: B023
            middle = sorted(theirs)[len(theirs) // 2], sorted(ours)[len(ours) // 2]
            found.append(
                Row(
                    f"eigenvectors, d = {dim}, every core busy: times faster than torch on two threads (median)",
                    middle[0] / middle[1],
                    "",
                    {"torch": f"{1e3 * middle[0]:.0f} ms", "ours": f"{1e3 * middle[1]:.0f} ms"},
                )
            )
    finally:
        torch.set_num_threads(threads)
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
    return found
