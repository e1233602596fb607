"""Eigenvectors: torch's own on two threads, and on one as TCA asks for them; on idle cores, and on busy ones."""

from __future__ import annotations

import os
import subprocess
import sys

import torch

from benchmarks.measure import Row, wall
from clip_tca.adapters.symmetric import eigh


def rows(quick: bool) -> list[Row]:
    """How many times longer torch.linalg.eigh takes on two threads."""
    threads = torch.get_num_threads()
    turns = 3 if quick else 9
    neighbours: list[subprocess.Popen[bytes]] = []
    table = []
    try:
        torch.set_num_threads(2)
        for state in ("every core idle", "every core busy"):
            for dim in (128, 512):
                a = torch.randn(dim, dim, dtype=torch.float64)
                sigma = a @ a.T
                pairs = [(wall(lambda: torch.linalg.eigh(sigma)), wall(lambda: eigh(sigma))) for _ in range(turns)]  # noqa: B023
                torch_time, our_time = (sorted(times)[turns // 2] for times in zip(*pairs, strict=True))
                table.append(
                    Row(
                        f"eigenvectors, d = {dim}, {state}: times faster than torch on two threads (median)",
                        torch_time / our_time,
                        "",
                        {"torch": f"{1e3 * torch_time:.0f} ms", "ours": f"{1e3 * our_time:.0f} ms"},
                    )
                )
            if not neighbours:
                for _ in range(os.cpu_count() or 1):
                    neighbours.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
    finally:
        torch.set_num_threads(threads)
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
    return table
