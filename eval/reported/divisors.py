"""Print what the published gain of the best TCA row over the best WATT row becomes on one divisor.

WATT's rows were divided by all images though the last batch of 128 was never seen; the TCA paper's rows by the images
seen. Both are in clip_vit_b16.json, as published and rescaled.
"""

from __future__ import annotations

import json
from pathlib import Path

WATT, TCA = ("WATT-P", "WATT-S"), ("LinearTCA", "LinearTCA+")


def page() -> str:
    """A Markdown table: one line for each data set."""
    content = json.loads((Path(__file__).parent / "clip_vit_b16.json").read_text(encoding="utf-8"))
    lines = [
        "| data set | best WATT, as published | rescaled to images seen | best TCA | published gain | one divisor |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, known in content["datasets"].items():
        watt, tca = ([known["methods"][m] for m in rows] for rows in (WATT, TCA))
        published, rescaled = (max(row[key] for row in watt) for key in ("average", "rescaled_average"))
        best = max(row["average"] for row in tca)
        averages = f"{published:.2f} | {rescaled:.2f} | {best:.2f}"
        lines.append(f"| {name} | {averages} | {best - published:+.2f} | {best - rescaled:+.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page())
