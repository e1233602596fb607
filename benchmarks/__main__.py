"""``python -m benchmarks``: one table of what was measured against its goals, and the same as JSON.

    python -m benchmarks [--only NAME] [--quick] [-o FILE.json]

Exits with 0 whether goals are met or not: speed depends on the machine, so it is reported, not tested.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

NAMES = ("fit", "stream", "command", "encode", "threads", "growth")


def measured(name: str, quick: bool) -> list[dict[str, object]]:
    """Rows of one benchmark, from a process of its own: none inherits another's threads, memory or imports."""
    code = (
        "import json, sys; from dataclasses import asdict; import importlib;"
        "rows = importlib.import_module(sys.argv[1]).rows(bool(int(sys.argv[2])));"
        "print(json.dumps([{**asdict(row), 'met': row.met} for row in rows]))"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code, f"benchmarks.{name}", str(int(quick))],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return [{"benchmark": name, **row} for row in json.loads(done.stdout.splitlines()[-1])]


def lines(rows: list[dict[str, object]]) -> list[str]:
    """The table in Markdown."""
    table = ["| what | measured | goal | met | from |", "|---|---:|---:|---|---|"]
    for row in rows:
        met = {True: "yes", False: "**no**", None: ""}[row["met"]]  # type: ignore[index]
        sides = "; ".join(f"{name} {value}" for name, value in row["sides"].items())  # type: ignore[attr-defined]
        goal = str(row["goal"]).replace(">=", "≥").replace("<=", "≤")
        table.append(f"| {row['what']} | {row['value']:.3g} | {goal} | {met} | {sides} |")
    return table


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", choices=NAMES, metavar="NAME", help=f"one of {', '.join(NAMES)}; repeatable"
    )
    parser.add_argument("--quick", action="store_true", help="fewer and smaller measurements")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="also write JSON")
    options = parser.parse_args()
    import torch

    load = os.getloadavg() if hasattr(os, "getloadavg") else (0.0,)
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_average_before": load[0],
        "torch": torch.__version__,
        "quick": options.quick,
    }
    rows: list[dict[str, object]] = []
    for name in options.only or NAMES:
        print(f"{name} …", file=sys.stderr)
        rows += measured(name, options.quick)
    print(*lines(rows), sep="\n")
    print(f"\n{machine['cores']} cores, load {load[0]:.1f} before the first measurement, torch {torch.__version__}")
    if options.output:
        options.output.write_text(
            json.dumps({"machine": machine, "rows": rows}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
