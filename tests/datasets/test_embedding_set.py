"""A data set of embeddings is read back from its file, and other files are refused in one line."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from clip_tca.bulk.class_texts import read_texts
from clip_tca.bulk.shards import open_embeddings
from clip_tca.datasets.embedding_set import load_embeddings
from clip_tca.datasets.synthetic import synthetic
from clip_tca.studies.study_run import run_study


def test_stored_embeddings_are_read_back(stored):
    data = load_embeddings(stored)
    assert data.scale == 30.0
    assert data.text.shape == (2, 7, 24)
    assert {name: tuple(z.shape) for name, (z, _) in data.domains.items()}["clean"] == (280, 24)
    assert data.domains["clean"][1].dtype == torch.int64
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_embeddings(stored.parent / "none.safetensors")


def test_what_is_saved_can_be_loaded_without_a_word(tmp_path):
    made = synthetic(0, classes=3, dim=8, images=10)
    for name in ("text.single", "text.watt", "text.mine"):
        made.save(tmp_path / "made.safetensors", name)
        assert torch.equal(load_embeddings(tmp_path / "made.safetensors").text, made.text)


def test_other_files_are_refused_in_one_line(stored, tmp_path):
    (tmp_path / "text.safetensors").write_text("no tensors here")
    with pytest.raises(ValueError, match=r"text\.safetensors: truncated or damaged"):
        load_embeddings(tmp_path / "text.safetensors")
    save_file({"text.watt": torch.eye(3)}, tmp_path / "no_scale.safetensors")
    with pytest.raises(ValueError, match="and a scale"):
        load_embeddings(tmp_path / "no_scale.safetensors")
    with pytest.raises(ValueError, match=r"no text\.single, but text\.watt; choose one of those by --prompts"):
        load_embeddings(stored, text="text.single")


def test_a_domain_without_labels_is_named(stored, tmp_path):
    tensors = load_file(stored)
    del tensors["clean.labels"]
    save_file(tensors, tmp_path / "a.safetensors", metadata={"scale": "30"})
    with pytest.raises(ValueError, match=r"a\.safetensors: not stored embeddings \('clean\.labels'\); it needs"):
        load_embeddings(tmp_path / "a.safetensors")


def test_eval_adapt_and_class_texts_read_one_file_in_the_same_way(stored):
    """One reader serves all three."""
    data = load_embeddings(stored)
    blocks = open_embeddings(str(stored), "clean.embeddings").shards[0].blocks()
    assert torch.equal(torch.cat([torch.from_numpy(block.z) for block in blocks]), data.domains["clean"][0])
    texts = read_texts(stored, "text.watt", None, "cpu")
    assert texts.classifier.scale == data.scale
    assert texts.classifier.n_classes == 7


@pytest.mark.parametrize("damage", [lambda content: content[:-100], lambda content: b"no tensors here"])
def test_a_damaged_file_gets_the_same_line_from_every_reader(damage, stored, tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(damage(stored.read_bytes()))
    messages = set()
    for read in (
        load_embeddings,
        lambda path: open_embeddings(str(path)),
        lambda path: read_texts(path, None, 1, "cpu"),
    ):
        with pytest.raises(
            ValueError, match=r"a\.safetensors: truncated or damaged \(.+\); copy or download it"
        ) as error:
            read(path)
        messages.add(str(error.value))
    assert len(messages) == 1


@pytest.fixture
def with_head(stored) -> dict[str, torch.Tensor]:
    """Tensors of a file with a head: two domains, and source data."""
    data = load_embeddings(stored)
    g = data.classifier()
    return {
        "head.weight": g.weight.float(),
        "head.bias": torch.linspace(-1, 1, 7),
        "target.features": 5 * data.domains["shifted"][0],
        "target.labels": data.domains["shifted"][1],
        "other.embeddings": 5 * data.domains["clean"][0],
        "other.labels": data.domains["clean"][1],
        "source.features": 5 * data.domains["clean"][0],
        "source.labels": data.domains["clean"][1].clone(),
    }


def test_a_file_may_hold_a_head_and_source_data_in_place_of_texts(with_head, tmp_path):
    path = tmp_path / "a.safetensors"
    save_file(with_head, path, metadata={"classes": '["a", "b", "c", "d", "e", "f", "g"]'})
    data = load_embeddings(path, "text.single")
    assert sorted(data.domains) == ["other", "target"]
    assert data.source is not None
    assert torch.equal(data.source[0], with_head["source.features"])
    g = data.classifier()
    assert g.classes == tuple("abcdefg")
    assert not g.unit_rows
    z = with_head["target.features"].float()
    torch.testing.assert_close(g.logits(z), z @ with_head["head.weight"].T + with_head["head.bias"])
    data.save(tmp_path / "b.safetensors")
    again = load_embeddings(tmp_path / "b.safetensors")
    assert torch.equal(again.classifier().weight, g.weight)
    assert again.source is not None
    assert torch.equal(again.source[1], data.source[1])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"head.weight": torch.ones(7, 16)}, "other: dimension 24, but the classifier has 16"),
        (
            {"head.weight": torch.ones(5, 24), "head.bias": torch.ones(5)},
            "other: labels up to 6, but the head has 5 classes; take the head of",
        ),
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


def test_studies_compare_with_the_source_data_of_the_file(with_head, tmp_path):
    save_file(with_head, tmp_path / "a.safetensors")
    record = run_study("upper-bound", str(tmp_path / "a.safetensors"))
    assert record["reference"] == "source"
    assert sorted(record["results"]["domains"]) == ["other", "target"]
    g = load_embeddings(tmp_path / "a.safetensors").classifier()
    right = (g.predict(with_head["target.features"]) == with_head["target.labels"]).double().mean()
    assert record["results"]["domains"]["target"]["zero-shot"] == pytest.approx(100 * float(right))
