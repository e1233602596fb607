"""``python -m benchmarks``: one table of what was measured against its goals, and the same as JSON.

    python -m benchmarks [--only NAME] [--quick] [-o FILE.json] [--before FILE.md]

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

HEAD = "| what | before | measured | goal | met | from |"
COLUMNS = HEAD.count("|") - 1
NAMES = ("fit", "stream", "adapt", "command", "encode", "growth", "scale")


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


def printed(path: Path) -> dict[str, str]:
    """What the tables in a Markdown file, as printed here before, say was measured; if nothing, then before that."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in path.read_text(encoding="utf-8").splitlines()]
    tables = [row for row in cells if len(row) == COLUMNS]
    return {row[0]: row[2] or row[1] for row in tables}


def lines(rows: list[dict[str, object]], before: dict[str, str]) -> list[str]:
    """The table in Markdown, beside the figures of ``before``."""
    table = [HEAD, "|---|---:|---:|---:|---|---|"]
    for row in rows:
        met = {True: "yes", False: "**no**", None: ""}[row["met"]]  # type: ignore[index]
        sides = "; ".join(f"{name} {value}" for name, value in row["sides"].items())  # type: ignore[attr-defined]
        goal = str(row["goal"]).replace(">=", "≥").replace("<=", "≤")
        table.append(
            f"| {row['what']} | {before.get(str(row['what']), '')} | {figure(row)} | {goal} | {met} | {sides} |"
        )
    return table


def figure(row: dict[str, object]) -> str:
    """The value with three digits, and no exponent from a thousand on."""
    value = float(row["value"])  # type: ignore[arg-type]
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


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
    parser.add_argument(
        "--before", type=Path, metavar="FILE", help="a table that was printed before, to show beside it"
    )
    options = parser.parse_args()
    before = printed(options.before) if options.before else {}
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
    print(*lines(rows, before), sep="\n")
    print(f"\n{machine['cores']} cores, load {load[0]:.1f} before the first measurement, torch {torch.__version__}")
    if options.output:
        options.output.write_text(
            json.dumps({"machine": machine, "rows": rows}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
