"""A data set of embeddings is read back from its file, and other files are refused in one line."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from clip_tca.bulk.class_texts import read_texts
from clip_tca.bulk.shards import open_embeddings
from clip_tca.datasets.embedding_set import load_embeddings
from clip_tca.datasets.synthetic import synthetic


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
    blocks = open_embeddings(str(stored), "clean.embeddings").shards[0].blocks(0, 280)
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
