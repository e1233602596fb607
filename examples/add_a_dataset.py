"""Evaluate your own data set: images in folders.

    python examples/add_a_dataset.py [DIR]

The layout is DIR/domain/class/image, or DIR/class/image for one domain. DIR/classes.txt may give class names for the
prompts. Without DIR, the program writes some of the demo's pictures to a folder. It prints the counts, the prompts, and
the table of ``clip-tca eval --dataset folder --data-dir DIR --model demo --class-names DIR/classes.txt``.

To add a benchmark to the package, with published counts to check, see CONTRIBUTING.md.
"""

import json
import logging
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from clip_tca import evaluate, render

PICTURES = Path(__file__).resolve().parents[1] / "eval" / "demo" / "pictures.parquet"
FOLDERS = {"n01": "airplane", "n02": "cup", "n03": "umbrella"}  # the name of each folder, and its class


def write_folder(root: Path) -> None:
    """Write 8 of the demo's pictures for each of 3 classes and 2 domains, and name the classes."""
    table = pq.read_table(PICTURES)
    names = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]["label"]["names"]
    for domain in ("clipart", "icon"):
        for folder, name in FOLDERS.items():
            (root / domain / folder).mkdir(parents=True)
            chosen = [row for row in table.to_pylist() if row["domain"] == domain and names[row["label"]] == name]
            for i, row in enumerate(chosen[:8]):
                (root / domain / folder / f"{i}.png").write_bytes(row["image"]["bytes"])
    (root / "classes.txt").write_text("".join(f"{folder} = {name}\n" for folder, name in FOLDERS.items()), "utf-8")


def report(root: Path) -> None:
    """Evaluate a folder and print the record's main parts."""
    names = str(root / "classes.txt") if (root / "classes.txt").is_file() else "clean"
    methods = ["zero-shot", "linear-tca", "conditional-tca"]
    # the small bundled model; without model="demo", CLIP ViT-B/16 with OpenAI's weights is used
    record = evaluate("folder", data_dir=root, model="demo", class_names=names, methods=methods, workers=0)
    for domain, counts in record["data"]["domains"].items():
        print(f"{domain}: {counts['images']} images, by class {counts['per_class']}")
    template, classes = record["prompts"]["templates"][0], record["prompts"]["classes"]
    print("prompts:", ", ".join(template.replace("{}", name) for name in classes))
    print(render([record], "table"))


if __name__ == "__main__":
    logging.getLogger("clip_tca").setLevel(logging.ERROR)  # no warnings about the small number of images
    if len(sys.argv) > 1:
        report(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            write_folder(Path(folder))
            report(Path(folder))
