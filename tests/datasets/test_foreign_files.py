"""Embeddings made elsewhere are scored as our own are; what does not fit together is refused in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import clip_tca
from clip_tca.cli import main
from clip_tca.datasets.embeddings import ForeignFiles, synthetic
from tests.object_stores import upload

METHODS = ("zero-shot", "linear-tca", "conditional-tca")
CLASSES = [f"class {number}" for number in range(7)]


@pytest.fixture(scope="module")
def made():
    return synthetic(0, classes=7, dim=24, images=40)


@pytest.fixture(scope="module")
def rows(made):
    return made.domains["shifted"]


@pytest.fixture
def folder(tmp_path, made, rows) -> Path:
    """``f.npy``, ``t.npy``, ``l.npy``."""
    for name, values in {"f": rows[0], "t": made.text, "l": rows[1]}.items():
        np.save(tmp_path / f"{name}.npy", values.numpy())
    return tmp_path


def correct(record: dict) -> list[int]:
    return [row["correct"] for row in record["rows"]]


def evaluate(dataset: Path, **more) -> dict:
    given = {name: str(value) if isinstance(value, Path) else value for name, value in more.items()}
    return clip_tca.evaluate(str(dataset), methods=METHODS, **given)


@pytest.fixture(scope="module")
def expected(made, tmp_path_factory) -> list[int]:
    """What our own file of the same embeddings gives."""
    path = tmp_path_factory.mktemp("own") / "own.safetensors"
    made.save(path)
    return correct(clip_tca.evaluate(str(path), methods=METHODS, domains=["shifted"]))


def test_arrays_give_what_our_own_file_of_the_same_embeddings_gives(folder, expected):
    record = evaluate(folder / "f.npy", text=folder / "t.npy", labels=folder / "l.npy", scale=30.0)
    assert correct(record) == expected
    assert expected[0] < expected[1]  # the classifier is not blind to the adaptation
    assert record["dataset"] == "f"
    assert record["data"]["origin"]["scale"] == 30.0
    assert record["model"] is None


def test_they_may_be_in_a_store(folder, expected, memory):
    upload(folder, memory)
    files = {"text": f"{memory}/t.npy", "labels": f"{memory}/l.npy"}
    assert correct(clip_tca.evaluate(f"{memory}/f.npy", methods=METHODS, scale=30.0, **files)) == expected


def test_the_scale_is_that_of_the_text_file_else_100_and_the_command_says_it(folder, made, capsys):
    files = ["--text", str(folder / "t.npy"), "--labels", str(folder / "l.npy")]
    assert main(["eval", "--dataset", str(folder / "f.npy"), *files, "--method", "zero-shot"]) == 0
    assert "logit scale 100." in capsys.readouterr().out
    made.save(folder / "own.safetensors")
    own = ForeignFiles(folder / "f.npy", folder / "own.safetensors", folder / "l.npy", text_column="text.single")
    assert own.load().scale == made.scale


def test_transclip_s_cache_is_read_with_its_transposed_prototypes(tmp_path, made, rows, expected):
    cache = tmp_path / "cache"
    cache.mkdir()
    torch.save(torch.nn.functional.normalize(rows[0], dim=-1), cache / "test_f.pt")
    torch.save(rows[1], cache / "test_l.pt")
    torch.save(rows[0][:3], cache / "val_f.pt")  # not the test images
    torch.save(made.text.T.contiguous()[None], tmp_path / "text_features.pt")  # (templates, d, classes)
    assert correct(evaluate(cache, text=tmp_path / "text_features.pt", scale=30.0)) == expected


@pytest.mark.parametrize("names", [False, True])
def test_clip_retrieval_s_folder_is_read_in_the_order_of_its_numbers(names, tmp_path, folder, made, rows, expected):
    (tmp_path / "img_emb").mkdir()
    (tmp_path / "metadata").mkdir()
    (tmp_path / "names.txt").write_text("\n".join(CLASSES) + "\n")
    parts = np.array_split(np.arange(len(rows[0])), 11)  # so that 10 comes after 9, not after 1
    for number, part in enumerate(parts):
        np.save(tmp_path / "img_emb" / f"img_emb_{number}.npy", rows[0].numpy()[part].astype(np.float32))
        labels = rows[1].numpy()[part]
        column = [CLASSES[label] for label in labels] if names else labels
        table = pa.table({"image_path": [f"{i}.jpg" for i in part], "species": column})
        pq.write_table(table, tmp_path / "metadata" / f"metadata_{number}.parquet")
    more = {"class_names": tmp_path / "names.txt"} if names else {}
    record = evaluate(tmp_path, text=folder / "t.npy", label_column="species", scale=30.0, **more)
    assert correct(record) == expected
    assert record["data"]["classes"] == (CLASSES if names else [str(number) for number in range(7)])


def test_a_table_and_an_archive_hold_labels_or_several_arrays(tmp_path, made, rows, expected):
    table = pa.table({"emb": list(rows[0].numpy()), "label": rows[1].numpy()})
    pq.write_table(table, tmp_path / "rows.parquet")
    np.savez(tmp_path / "arrays.npz", text=made.text.numpy(), other=rows[0].numpy())
    record = evaluate(tmp_path / "rows.parquet", text=tmp_path / "arrays.npz", text_column="text", scale=30.0)
    assert correct(record) == expected
    np.savetxt(tmp_path / "l.txt", rows[1].numpy(), fmt="%d")
    more = {"text": tmp_path / "arrays.npz", "labels": tmp_path / "l.txt", "scale": 30.0}
    assert correct(evaluate(tmp_path / "arrays.npz", column="other", **more)) == expected


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("f", lambda z: z[:, :-1], r"f\.npy: dimension 23, but the classifier has 24; both must come from the same"),
        ("f", lambda z: np.where(z == z[3, 0], np.nan, z), r"f\.npy: 1 of 280 rows hold NaN or infinity \(rows 3\)"),
        ("f", lambda z: z[0], r"f\.npy: shape \(24,\); a matrix"),
        ("f", lambda z: z[:0], "no rows"),
        ("l", lambda y: y[:-1], r"labels: shape \(279,\), but there are 280 embeddings; one label for each is needed"),
        ("l", lambda y: y + 1, "labels: values 1 to 7; allowed are 0 to 6"),
        ("l", lambda y: y.astype(float), "labels: dtype torch.float64 is not allowed"),
        ("t", lambda t: t[:1], "text: 1 class; at least 2 are needed"),
        ("t", lambda t: t[:, 0], "text: expected"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(name, change, reason, folder):
    np.save(folder / f"{name}.npy", change(np.load(folder / f"{name}.npy")))
    with pytest.raises(ValueError, match=reason) as error:
        evaluate(folder / "f.npy", text=folder / "t.npy", labels=folder / "l.npy")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("dataset", "more", "reason"),
    [
        ("f.npy", {}, r"text: none given; .*f\.npy holds embeddings, and --text FILE"),
        ("", {}, "is a folder; of pictures, name it by --dataset folder --data-dir .*; of embeddings"),
        ("f.npy", {"text": "t.npy"}, r"labels: .*f\.npy has none, and accuracy needs them; give --labels FILE"),
        ("none.npy", {"text": "t.npy"}, r"none\.npy: no such file, folder or pattern"),
        ("f.npy", {"text": "none.npy", "labels": "l.npy"}, r"text: .*none\.npy is not a file"),
    ],
)
def test_what_is_missing_is_named(dataset, more, reason, folder):
    with pytest.raises((ValueError, FileNotFoundError), match=reason):
        evaluate(folder / dataset, **{name: folder / file for name, file in more.items()})


def test_a_pickle_is_not_run(folder):
    class Evil:
        def __reduce__(self):
            return Path.touch, (folder / "run",)

    torch.save(Evil(), folder / "f.pt")
    with pytest.raises(ValueError, match=r"f\.pt: truncated or damaged .*; only tensors are read") as error:
        evaluate(folder / "f.pt", text=folder / "t.npy", labels=folder / "l.npy")
    assert "\n" not in str(error.value)
    assert not (folder / "run").exists()


def test_labels_that_are_words_need_the_class_names(folder, rows):
    table = pa.table({"emb": list(rows[0].numpy()), "label": ["dog"] * 280})
    pq.write_table(table, folder / "rows.parquet")
    with pytest.raises(ValueError, match=r"label 'dog'; a whole number or a class name is needed .*--class-names"):
        evaluate(folder / "rows.parquet", text=folder / "t.npy")
    with pytest.raises(ValueError, match=r"no column breed; there are emb, label; name it with --label-column"):
        evaluate(folder / "rows.parquet", text=folder / "t.npy", label_column="breed")
