"""Evaluate a data set of your own: images in folders, evaluated as the benchmarks are.

    python examples/add_a_dataset.py [DIR]

The layout is DIR/domain/class/image (DIR/class/image for one domain). A file DIR/classes.txt may give class names for
the prompts. Without DIR a small set is cut from the demo's images. Prints the counts, the prompts, and the table of
``clip-tca eval --dataset folder --data-dir DIR --model demo --class-names DIR/classes.txt`` for three methods.

A *benchmark*, with other names for its folders and published counts to check, is an entry of the package itself: a
``Benchmark`` in clip_tca/datasets/registry.py, and its classes, one a line, in prompts/classes/NAME.txt.
"""

import logging
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from clip_tca import evaluate, render

FOLDERS = {"n01": (0, "dog"), "n02": (2, "giraffe"), "n03": (3, "guitar")}  # row in the contact sheet, class name


def draw_folder(root: Path) -> None:
    """Cut the demo's contact sheet into 8 images for each of 3 classes and 2 domains, and name the classes."""
    subprocess.run([sys.executable, "-m", "clip_tca", "data", "show", "demo"], cwd=root, check=True)
    sheet = Image.open(root / "clip-tca-demo.png")
    for domain, top in {"art_painting": 18, "photo": 728}.items():
        for folder, (row, _) in FOLDERS.items():
            (root / domain / folder).mkdir(parents=True)
            for i in range(8):
                x, y = 64 + 98 * i, top + 98 * row
                sheet.crop((x, y, x + 96, y + 96)).save(root / domain / folder / f"{i}.png")
    lines = [f"{folder} = {name}" for folder, (_, name) in FOLDERS.items()]
    (root / "classes.txt").write_text("\n".join(lines), encoding="utf-8")


def report(root: Path) -> None:
    """Evaluate a folder and print the record's main parts."""
    names = str(root / "classes.txt") if (root / "classes.txt").is_file() else "clean"
    methods = ["zero-shot", "linear-tca", "conditional-tca"]
    # the bundled model knows the demo's classes only; leave model out for CLIP itself (ViT-B/16, OpenAI's weights)
    record = evaluate("folder", data_dir=root, model="demo", class_names=names, methods=methods, workers=0)
    for domain, counts in record["data"]["domains"].items():
        print(f"{domain}: {counts['images']} images, by class {counts['per_class']}")
    template, classes = record["prompts"]["templates"][0], record["prompts"]["classes"]
    print("prompts:", ", ".join(template.replace("{}", name) for name in classes))
    print(render([record], "table"))


if __name__ == "__main__":
    logging.getLogger("clip_tca").setLevel(logging.ERROR)  # which warns of so few images
    if len(sys.argv) > 1:
        report(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            draw_folder(Path(folder))
            report(Path(folder))
