"""Bring a data set of your own into the harness: pictures in folders, evaluated as the benchmarks are.

    python examples/add_a_dataset.py [DIR]

DIR/domain/class/image is all it takes (DIR/class/image for one domain). A file DIR/classes.txt may say how folders are
called in the prompts. Without DIR a small set is drawn. Prints what was found, the prompts, and the table of
``clip-tca eval --dataset folder --data-dir DIR --model demo`` for three methods (each a ``--method``) and, where there
is one, with ``--class-names DIR/classes.txt``.

A *benchmark*, with other names for its folders and published counts to check, is an entry of the package itself: a
``Benchmark`` in clip_tca/datasets/registry.py, and its classes, one a line, in prompts/classes/NAME.txt.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import clip_tca
from clip_tca.datasets.demo import draw
from clip_tca.results.rendering import render

CLASSES = {"n01": "dog", "n02": "giraffe", "n03": "guitar"}  # folder names as they sometimes are, and what they mean


def draw_folder(root: Path) -> None:
    """Eight pictures for each of three classes and two styles, and a class-name file beside them."""
    for style in ("art_painting", "photo"):
        for folder, name in CLASSES.items():
            (root / style / folder).mkdir(parents=True)
            for i in range(8):
                draw(style, name, i).save(root / style / folder / f"{i}.png")
    lines = [f"{folder} = {name}" for folder, name in CLASSES.items()]
    (root / "classes.txt").write_text("\n".join(lines), encoding="utf-8")


def report(root: Path) -> None:
    """Evaluate a folder and print the record's main parts."""
    names = str(root / "classes.txt") if (root / "classes.txt").is_file() else "clean"
    methods = ["zero-shot", "linear-tca", "conditional-tca"]
    # the bundled model knows the demo's classes only; leave model out for CLIP itself (ViT-B/16, OpenAI's weights)
    record = clip_tca.evaluate("folder", data_dir=root, model="demo", class_names=names, methods=methods, workers=0)
    for domain, found in record["data"]["domains"].items():
        print(f"{domain}: {found['images']} images, by class {found['per_class']}")
    prompts = record["prompts"]
    print("prompts:", ", ".join(prompts["templates"][0].replace("{}", name) for name in prompts["classes"]))
    print(render([record], "table"))


if __name__ == "__main__":
    logging.getLogger("clip_tca").setLevel(logging.ERROR)  # so few images call for warnings
    if len(sys.argv) > 1:
        report(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            draw_folder(Path(folder))
            report(Path(folder))
