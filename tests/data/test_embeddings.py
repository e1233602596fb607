"""Data sets of embeddings are read back from our file, and those of other programs are scored as our own are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

import clip_tca
from clip_tca.cli import main
from clip_tca.data.embeddings import ForeignFiles, load_embeddings, read_class_texts, synthetic
from clip_tca.data.formats import open_shard
from clip_tca.studies.frame import run_study
from tests.object_stores import upload

METHODS = ("zero-shot", "linear-tca", "conditional-tca")
CLASSES = [f"class {number}" for number in range(7)]


# -- our own files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["text.single", "text.watt", "text.mine"])
def test_what_is_saved_can_be_loaded_without_a_word(name, tmp_path):
    made, path = synthetic(0, classes=3, dim=8, images=10), tmp_path / "made.safetensors"
    made.save(path, name)
    data = load_embeddings(path)
    assert torch.equal(data.text, made.text)
    assert data.scale == made.scale
    for domain, (z, y) in made.domains.items():
        assert torch.equal(data.domains[domain][0], z)
        assert torch.equal(data.domains[domain][1], y)
    assert torch.equal(read_class_texts(path, name).rows, made.text)
    blocks = open_shard(path, "clean.embeddings").blocks(7)
    assert torch.equal(torch.cat([torch.from_numpy(block.z) for block in blocks]), made.domains["clean"][0])


def test_files_that_are_not_ours_are_refused_in_one_line(stored, tmp_path):
    path = tmp_path / "a.safetensors"
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_embeddings(path)
    save_file({"text.watt": torch.eye(3)}, path)
    with pytest.raises(ValueError, match="and a scale"):
        load_embeddings(path)
    with pytest.raises(ValueError, match=r"no text\.single, but text\.watt; choose one of those by --prompts"):
        load_embeddings(stored, text="text.single")
    tensors = load_file(stored)
    del tensors["clean.labels"]
    save_file(tensors, path, metadata={"scale": "30"})
    with pytest.raises(ValueError, match=r"a\.safetensors: not stored embeddings \('clean\.labels'\); it needs"):
        load_embeddings(path)
    np.save(tmp_path / "emb.npy", np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"emb.npy: not a .safetensors file .* LinearTCA\(g\).fit\(z\)"):
        load_embeddings(tmp_path / "emb.npy")
    for content in (stored.read_bytes()[:-100], b"no tensors here"):
        path.write_bytes(content)
        for read in (load_embeddings, open_shard, read_class_texts):
            with pytest.raises(ValueError, match=r"a\.safetensors: truncated or damaged \(.+\); copy or download it"):
                read(path)


@pytest.fixture
def with_head(stored) -> dict[str, torch.Tensor]:
    """Tensors of a file with a head: two domains, and source data."""
    data = load_embeddings(stored)
    (clean, clean_labels), (shifted, labels) = data.domains["clean"], data.domains["shifted"]
    return {
        "head.weight": data.classifier().weight.float(),
        "head.bias": torch.linspace(-1, 1, 7),
        "target.features": 5 * shifted,
        "target.labels": labels,
        "other.embeddings": 5 * clean,
        "other.labels": clean_labels,
        "source.features": 5 * clean,
        "source.labels": clean_labels.clone(),
    }


def test_a_file_may_hold_a_head_and_source_data_in_place_of_texts(with_head, tmp_path):
    path = tmp_path / "a.safetensors"
    save_file(with_head, path, metadata={"classes": '["a", "b", "c", "d", "e", "f", "g"]'})
    for _ in range(2):
        data = load_embeddings(path, "text.single")
        assert sorted(data.domains) == ["other", "target"]
        assert torch.equal(data.source[0], with_head["source.features"])
        g = data.classifier()
        assert g.classes == tuple("abcdefg")
        assert not g.unit_rows
        z = with_head["target.features"].float()
        torch.testing.assert_close(g.logits(z), z @ with_head["head.weight"].T + with_head["head.bias"])
        data.save(path)  # what is saved again is read as the same
    record = run_study("upper-bound", str(path))
    assert record["reference"] == "source"
    right = (g.predict(with_head["target.features"]) == with_head["target.labels"]).double().mean()
    before = [row for row in record["results"] if row["domain"] == "target" and row["method"] == "zero-shot"]
    assert [row["accuracy"] for row in before] == [pytest.approx(100 * float(right))]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"head.weight": torch.ones(7, 16)}, "other: dimension 24, but the classifier has 16"),
        ({"head.weight": torch.ones(5, 24), "head.bias": torch.ones(5)}, "labels: values 0 to 6; allowed are 0 to 4"),
        ({"head.bias": torch.ones(5)}, r"bias: shape \(5,\), but the weight has 7 classes"),
        ({"target.features": torch.full((280, 24), torch.nan)}, "target: 280 of 280 rows hold NaN or infinity"),
        ({"source.features": torch.ones(280, 3)}, "source: dimension 3, but the classifier has 24"),
    ],
)
def test_a_head_or_features_that_do_not_fit_are_refused_in_one_line(change, says, with_head, tmp_path):
    save_file(with_head | change, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=says) as error:
        load_embeddings(tmp_path / "a.safetensors")
    assert "\n" not in str(error.value)


# -- files of other programs ------------------------------------------------------------------------------------------


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


def changed(name: str, change) -> dict:
    """``f.npy`` with text and labels, of which the file ``name`` is changed."""
    np.save(f"{name}.npy", change(np.load(f"{name}.npy")))
    return {"text": "t.npy", "labels": "l.npy"}


def words(**more: str) -> dict:
    table = pa.table({"emb": list(np.load("f.npy")), "label": ["dog"] * 280})
    pq.write_table(table, "f.parquet")
    return {"dataset": "f.parquet", "text": "t.npy", **more}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (lambda: changed("f", lambda z: z[:, :-1]), r"f\.npy: dimension 23, but the classifier has 24; both must come"),
        (lambda: changed("f", lambda z: np.where(z == z[3, 0], np.nan, z)), r"f\.npy: 1 of 280 rows .* \(rows 3\)"),
        (lambda: changed("f", lambda z: z[0]), r"f\.npy: shape \(24,\); a matrix"),
        (lambda: changed("f", lambda z: z[:0]), "no rows"),
        (lambda: changed("l", lambda y: y[:-1]), r"labels: shape \(279,\), but there are 280 embeddings"),
        (lambda: changed("l", lambda y: y + 1), "labels: values 1 to 7; allowed are 0 to 6"),
        (lambda: changed("l", lambda y: y.astype(float)), "labels: dtype torch.float64 is not allowed"),
        (lambda: changed("t", lambda t: t[:1]), "text: 1 class; at least 2 are needed"),
        (lambda: changed("t", lambda t: t[:, 0]), "text: expected"),
        (dict, r"text: none given; .*f\.npy holds embeddings, and --text FILE"),
        (lambda: {"dataset": "."}, "is a folder; of pictures, name it by --dataset folder .*; of embeddings, add --te"),
        (lambda: {"text": "t.npy"}, r"labels: .*f\.npy has none, and accuracy needs them; give --labels FILE"),
        (lambda: {"dataset": "none.npy", "text": "t.npy"}, r"none\.npy: no such file, folder or pattern"),
        (lambda: {"text": "none.npy", "labels": "l.npy"}, r"text: .*none\.npy is not a file"),
        (words, r"label 'dog'; a whole number or a class name is needed .*--class-names"),
        (lambda: words(label_column="breed"), r"no column breed; there are emb, label; name it with --label-column"),
    ],
)
def test_what_is_missing_or_does_not_fit_is_one_line(files, reason, folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=reason) as error:
        evaluate(**{"dataset": "f.npy", **files()})
    assert "\n" not in str(error.value)


def test_a_pickle_is_not_run(folder):
    class Evil:
        def __reduce__(self):
            return Path.touch, (folder / "run",)

    torch.save(Evil(), folder / "f.pt")
    with pytest.raises(ValueError, match=r"f\.pt: truncated or damaged .*; only tensors are read") as error:
        evaluate(folder / "f.pt", text=folder / "t.npy", labels=folder / "l.npy")
    assert "\n" not in str(error.value)
    assert not (folder / "run").exists()
