"""Pictures in, labels out: the table, the screen, and what it has in common with an evaluation."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import clip_tca
from clip_tca.cli import main
from clip_tca.data.prompts import given_classes
from clip_tca.labelling.label import for_review, sureness
from tests.demo_files import write_demo
from tests.tiny_clip import MODEL

CLASSES = "airplane, bird, car"
COLUMNS = ["file", "label", "confidence", "zero_shot", "zero_shot_confidence", "changed", "runner_up"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sixty pictures in folders of style and class, which label must take for places only."""
    return write_demo(tmp_path_factory.mktemp("demo"), ["icon", "sketch"], 3, 10)


def test_the_labels_are_those_of_an_evaluation_that_sees_the_same_pictures(folder, tmp_path):
    classes = ["airplane", "bird", "car"]
    for method in ("conditional-tca", "linear-tca", "gmm", "tda", "t3a+tca"):
        table = clip_tca.label(folder, classes, model=MODEL, by_domain=True, method=method)
        file = tmp_path / f"{method}.csv"
        clip_tca.evaluate("folder", data_dir=folder, model=MODEL, methods=[method], predictions=file)
        scored = pd.read_csv(file)
        assert list(scored.columns) == ["method", "domain", *COLUMNS, "true"]
        both = table.assign(file=table["file"].str.partition("/")[2]).merge(scored, on=["domain", "file"])
        assert len(both) == len(table) == 60
        assert (both["label_x"] == both["label_y"]).mean() > 0.98  # another order of rows rounds differently
        assert (both["zero_shot_x"] == both["zero_shot_y"]).all()
        assert scored["true"].tolist() == [name.split("/")[0] for name in scored["file"]]


def test_the_table_says_what_was_before_what_changed_and_what_comes_next(folder):
    table = clip_tca.label(folder, CLASSES, model=MODEL, top=3)
    assert list(table.columns) == [
        *COLUMNS,
        "label_1",
        "confidence_1",
        "label_2",
        "confidence_2",
        "label_3",
        "confidence_3",
    ]
    assert (table["changed"] == (table["label"] != table["zero_shot"])).all()
    assert (table["label_1"] == table["label"]).all()
    assert (table["label_2"] == table["runner_up"]).all()
    assert np.allclose(table[["confidence_1", "confidence_2", "confidence_3"]].sum(axis=1), 1, atol=1e-5)
    assert table.attrs["verdict"]["pictures"] in ("can't tell", "little effect")


def test_zero_shot_by_label_is_the_classifier_of_the_embeddings(folder):
    table = clip_tca.label(folder, CLASSES, model=MODEL, method="zero-shot")
    assert not table["changed"].any()
    z = clip_tca.encode(folder, MODEL)
    assert z.shape == (60, 32)
    again = clip_tca.encode([Image.open(folder / name) for name in table["file"][:5]], MODEL, cache=False)
    assert np.allclose(again, z[:5], atol=1e-5)


def test_paths_images_and_arrays_get_the_same_labels(folder):
    files = [folder / name for name in clip_tca.label(folder, CLASSES, model=MODEL)["file"]]
    images = [Image.open(file).convert("RGB") for file in files]
    tables = [
        clip_tca.label(pictures, CLASSES, model=MODEL)
        for pictures in (files, images, [np.asarray(image) for image in images])
    ]
    assert tables[0]["label"].tolist() == tables[1]["label"].tolist() == tables[2]["label"].tolist()


def test_a_single_picture_has_a_label(folder):
    (row,) = clip_tca.label(next(folder.rglob("*.png")), CLASSES, model=MODEL).to_dict("records")
    assert row["label"] == row["zero_shot"]


def test_shares_and_readable_names_reach_the_classifier(folder, tmp_path):
    classes = tmp_path / "classes.txt"
    classes.write_text("a = airplane\nb = bird\nc = car\n")
    plain = clip_tca.label(folder, CLASSES, model=MODEL, method="zero-shot")
    coded = clip_tca.label(folder, str(classes), model=MODEL, method="zero-shot")
    assert coded["label"].tolist() == [name[0] for name in plain["label"]]
    few, many = (
        clip_tca.label(folder, CLASSES, model=MODEL, options={"shares": {"airplane": share, "bird": 1, "car": 1}})
        for share in (0.01, 100)
    )
    assert (many["label"] == "airplane").sum() > (few["label"] == "airplane").sum() + 10


@pytest.mark.parametrize(
    ("classes", "reason"),
    [
        ("dog", "only 'dog'; at least 2 are needed"),
        ("", "none; at least 2"),
        ("dog, cat, dog", "'dog' is there twice; name it once"),
        (["Polar Bear", "polar_bear"], r"'polar_bear' is there twice \(as 'Polar Bear'\)"),
    ],
)
def test_classes_that_cannot_tell_pictures_apart_are_one_line(classes, reason):
    with pytest.raises(ValueError, match=reason):
        given_classes(classes)


def test_classes_are_a_list_a_line_or_a_file(tmp_path):
    (tmp_path / "c.txt").write_text("# animals\ndog\npolar_bear\nn01 = house cat\n")
    assert given_classes(" dog ,  polar   bear,") == {"dog": "dog", "polar bear": "polar bear"}
    assert given_classes(["dog", "cat"]) == {"dog": "dog", "cat": "cat"}
    assert given_classes(str(tmp_path / "c.txt")) == {"dog": "dog", "polar_bear": "polar bear", "n01": "house cat"}


def test_an_oracle_has_no_labels_to_look_at(folder):
    with pytest.raises(ValueError, match="uses true labels"):
        clip_tca.label(folder, CLASSES, model=MODEL, method="linear-tca:reference")


def test_as_many_labels_stay_as_the_share_that_may_be_wrong_allows():
    sure = np.array([0.5, 1.0, 0.9, 0.8])
    # chances to be wrong, the surest first: 0, 0.1, 0.2, 0.5; their running means 0, 0.05, 0.1, 0.2
    assert for_review(sure, 0.1).tolist() == [True, False, False, False]
    assert for_review(sure, 0.06).tolist() == [True, False, False, True]
    assert for_review(sure, 0.2).tolist() == [False] * 4
    with pytest.raises(ValueError, match="review_below: 5"):
        for_review(sure, 5)


def test_a_label_is_as_sure_as_both_classifiers_together():
    before, after = torch.tensor([[0.6, 0.4], [0.6, 0.4]]).log(), torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log()
    assert sureness(before, after).tolist() == pytest.approx([0.9 * 0.6, 0.8 * 0.4])


def test_a_picture_for_review_has_no_label_and_a_proposal(folder):
    table = clip_tca.label(folder, CLASSES, model=MODEL, review_below=0.3)
    assert 0 < table["review"].sum() < len(table)
    assert (table["label"] == "").tolist() == table["review"].tolist()
    assert set(table["proposal"]) <= {"airplane", "bird", "car"}


def test_the_screen_counts_and_the_file_has_the_suffix_s_format(folder, tmp_path, capsys):
    words = ["label", str(folder), "--classes", CLASSES, "--model", MODEL]
    for suffix in ("csv", "parquet", "json"):
        assert main([*words, "-o", str(tmp_path / f"labels.{suffix}")]) == 0
    out = capsys.readouterr().out
    tables = [pd.read_csv(tmp_path / "labels.csv"), pd.read_parquet(tmp_path / "labels.parquet")]
    tables.append(pd.DataFrame(json.loads((tmp_path / "labels.json").read_text())))
    for table in tables:
        pd.testing.assert_frame_equal(table, tables[0], check_dtype=False)
    changed = int(tables[0]["changed"].sum())
    assert "60 pictures, 3 classes; model local-dir:tiny." in out
    assert f"conditional-tca changed {changed} of 60 labels ({changed / 60:.1%})." in out
    counts = tables[0][["zero_shot", "label"]].apply(pd.Series.value_counts).fillna(0).astype(int)
    for name, (before, after) in counts.iterrows():
        assert f"{name:8}  {before:6d}  {after:6d}" in out
    assert "Verdict: " in out
    assert f"written: {tmp_path / 'labels.csv'}" in out


def test_what_exists_is_not_replaced_unless_told(folder, tmp_path, capsys):
    words = ["label", str(folder), "--classes", CLASSES, "--model", MODEL, "-o", str(tmp_path / "labels.csv")]
    (tmp_path / "labels.csv").write_text("mine")
    assert main(words) == 1
    assert "labels.csv exists; name another file, or add --overwrite" in capsys.readouterr().err
    assert (tmp_path / "labels.csv").read_text() == "mine"
    assert main([*words, "--overwrite"]) == 0
    assert len(pd.read_csv(tmp_path / "labels.csv")) == 60


def test_few_pictures_are_told_what_to_expect(folder, capsys):
    assert main(["label", str(folder / "icon"), "--classes", CLASSES, "--model", MODEL]) == 0
    out = capsys.readouterr().out
    assert "Fewer than 50 pictures: there is little to adapt to, so expect few changes." in out
    assert "Nothing was written" in out


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["{}"], 2, "--classes is needed"),
        (["--classes", "a, b"], 2, "PICTURES or --hub-id is needed"),
        (["{}", "--classes", "a, b", "--review-below", "5"], 2, "a number between 0 and 1"),
        (["{}", "--classes", "dog"], 1, "only 'dog'; at least 2 are needed"),
        (["{}", "--classes", "a, b", "-o", "labels.xls"], 1, "must end with .csv, .parquet, .json"),
        (["{}/none", "--classes", "a, b"], 1, "none is not a file or folder"),
        (["{}", "--classes", "a, b", "--sort-into", "{}"], 1, "is not empty; name a new folder"),
        (["{}", "--classes", "dog, cat, Dog"], 1, "'Dog' is there twice (as 'dog'); name it once"),
        (["{}/*.webp", "--classes", "a, b", "--model", MODEL], 1, "nothing matches"),
        (["{}/empty", "--classes", "a, b", "--model", MODEL], 1, "no picture in it; pictures end with .jpg"),
        (["{}", "--classes", "a, b", "--method", "linear-tca:reference"], 1, "uses true labels"),
        (["{}", "--classes", "a, b", "--hub-id", "x"], 1, "pictures are given too; give one of them"),
    ],
)
def test_words_that_cannot_work_are_one_line(words, code, reason, folder, capsys):
    (folder / "empty").mkdir(exist_ok=True)
    try:
        found = main(["label", *(word.format(folder) for word in words)])
    except SystemExit as stop:
        found = stop.code
    assert found == code
    assert reason in capsys.readouterr().err.splitlines()[-1]


def test_a_broken_picture_is_named_and_skipped_if_told(folder, tmp_path, capsys):
    for name in ("a.png", "b.png"):
        Image.new("RGB", (20, 20), (len(name), 9, 9)).save(tmp_path / name)
    (tmp_path / "broken.jpg").write_bytes(b"not an image")
    Image.new("1", (10_000, 9_000)).save(tmp_path / "huge.png")
    words = ["label", str(tmp_path), "--classes", CLASSES, "--model", MODEL]
    assert main(words) == 1
    assert "2 images can't be read" in (err := capsys.readouterr().err)
    assert "huge.png: 10000 × 9000 pixels, more than 89,478,485" in err
    assert "broken.jpg: not an image that Pillow can read" in err
    assert main([*words, "--skip-bad"]) == 0
    assert "2 pictures, 3 classes" in (out := capsys.readouterr().out)
    assert "left out: 2 pictures that can't be read" in out
