"""Draw the figure of README.md and of the site's first page: what adaptation does to the demo.

    python eval/demo/gain.py            writes docs/figures/gain-light.png and gain-dark.png (needs the extra `plot`)

Above: ten pictures drawn at random from those that adaptation corrected and those that it made wrong, in proportion.
Pictures that changed from one wrong label to another are counted in the subtitle and not drawn. Below:
accuracy of each style before and after. True labels mark and count; the method does not see them.
"""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pyarrow.parquet as pq
from matplotlib.axes import Axes
from PIL import Image

import clip_tca

HERE = Path(__file__).resolve().parent
FIGURES = HERE.parents[1] / "docs" / "figures"
THEMES = {
    "light": {
        "text": "#1f2328",
        "quiet": "#656d76",
        "right": "#0a6b3d",
        "wrong": "#b3261e",
        "bars": ("#b8bfc7", "#0072B2"),
    },
    "dark": {
        "text": "#e6edf3",
        "quiet": "#9198a1",
        "right": "#4ac27a",
        "wrong": "#ff8a80",
        "bars": ("#59626c", "#56B4E9"),
    },
}


def labelled() -> pd.DataFrame:
    """The table of ``clip-tca label demo --domains``, with the true label and the picture of each row."""
    pictures = pq.read_table(HERE / "pictures.parquet")
    names = json.loads(pictures.schema.metadata[b"huggingface"])["info"]["features"]["label"]["names"]
    truth = pictures.to_pandas().sort_values("domain", kind="stable").reset_index(drop=True)
    table = clip_tca.label("demo", by_domain=True)
    if table["domain"].tolist() != truth["domain"].tolist():
        raise ValueError("pictures.parquet and the table of labels are not in one order")
    table["truth"] = [names[label] for label in truth["label"]]
    table["bytes"] = [image["bytes"] for image in truth["image"]]
    return table


def draw(table: pd.DataFrame, theme: dict[str, str]) -> plt.Figure:
    """Ten changed pictures and a bar for each style."""
    plt.rcParams |= {"font.family": "DejaVu Sans", "font.size": 12, "text.color": theme["text"]}
    figure = plt.figure(figsize=(6.4, 6.0))
    parts = figure.add_gridspec(
        3, 5, height_ratios=(1, 1, 1.15), hspace=0.85, wspace=0.25, left=0.02, right=0.98, top=0.86, bottom=0.05
    )
    before, after = table["zero_shot"] == table["truth"], table["label"] == table["truth"]
    corrected, broken = table[~before & after], table[before & ~after]
    share = round(10 * len(corrected) / (len(corrected) + len(broken)))
    shown = pd.concat([corrected.sample(share, random_state=0), broken.sample(10 - share, random_state=0)])
    still = int((table["changed"] & ~before & ~after).sum())
    title = f"{len(corrected)} pictures corrected, {len(broken)} newly wrong"
    figure.text(0.02, 0.955, title, weight="bold")
    figure.text(
        0.02,
        0.915,
        f"ten of these at random, in proportion; {still} more changed and stayed wrong",
        color=theme["quiet"],
        size=10,
    )
    for i, row in enumerate(shown.itertuples()):
        picture(figure.add_subplot(parts[i // 5, i % 5]), row, theme)
    bars(figure.add_subplot(parts[2, :]), table, theme)
    return figure


def picture(axes: Axes, row: tuple, theme: dict[str, str]) -> None:
    """One picture on white, and below it both labels, each green if it is right and red if it is wrong."""
    axes.imshow(Image.open(BytesIO(row.bytes)).convert("RGB"))
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color(theme["quiet"])
    for y, label, sign in ((-0.17, row.zero_shot, ""), (-0.37, row.label, "→ ")):
        colour, mark = (theme["right"], " ✓") if label == row.truth else (theme["wrong"], " ✗")
        axes.text(0.5, y, sign + label + mark, transform=axes.transAxes, ha="center", color=colour, size=11)


def bars(axes: Axes, table: pd.DataFrame, theme: dict[str, str]) -> None:
    """Accuracy by style, before and after."""
    right = pd.DataFrame({column: table[column] == table["truth"] for column in ("zero_shot", "label")})
    accuracy = 100 * right.groupby(table["domain"]).mean()
    accuracy.loc["average"] = accuracy.mean()
    for offset, column, name, colour in zip(
        (-0.2, 0.2), accuracy, ("zero-shot", "clip-tca"), theme["bars"], strict=True
    ):
        places = [i + offset for i in range(len(accuracy))]
        axes.bar(places, accuracy[column], 0.36, color=colour, label=name)
        for x, value in zip(places, accuracy[column], strict=True):
            axes.text(x, value + 2, f"{value:.1f}", ha="center", size=11)
    axes.set(xticks=range(len(accuracy)), yticks=[], ylim=(0, 85))
    axes.set_xticklabels(accuracy.index, color=theme["text"])
    axes.tick_params(length=0)
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.spines["bottom"].set_color(theme["quiet"])
    axes.set_title("Accuracy (%)", loc="left", size=12, weight="bold", color=theme["text"])
    axes.legend(ncols=2, loc="upper right", frameon=False, bbox_to_anchor=(1, 1.27), fontsize=11)


if __name__ == "__main__":
    content = labelled()
    for name, colours in THEMES.items():
        target = FIGURES / f"gain-{name}.png"
        draw(content, colours).savefig(target, dpi=200, transparent=True, metadata={"Software": None})
        print(f"written: {target.name}, {target.stat().st_size / 1000:.0f} KB")
