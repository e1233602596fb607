"""A caller can catch a missing network and a damaged file apart from bad input."""

from __future__ import annotations

import pickle
from urllib.error import URLError

import pytest

import clip_tca
from clip_tca import ClipTcaError, CorruptFileError, LinearTCA, OfflineError
from clip_tca.core.errors import is_offline
from clip_tca.data.embeddings import load_embeddings
from clip_tca.data.formats import open_shard
from clip_tca.data.hub import load_hub
from clip_tca.data.pictures import decode
from clip_tca.encoding.base import make_encoder
from clip_tca.encoding.checkpoint import read_checkpoint
from clip_tca.results.record import read

OFFLINE = {
    "a saved adapter": lambda: clip_tca.from_pretrained("nobody/nothing"),
    "a data set": lambda: load_hub("nobody/nothing", None),
    "a model of open_clip": lambda: make_encoder("ViT-B-32", "laion2b_s34b_b79k", "cpu").identity,
    "a model on the hub": lambda: make_encoder("hf-hub:nobody/nothing", None, "cpu").identity,
    "a model of transformers": lambda: make_encoder("transformers:nobody/nothing", None, "cpu").identity,
    "a benchmark": lambda: clip_tca.evaluate("vlcs", methods=["zero-shot"], model="demo"),
}
CORRUPT = {
    "a saved adapter": ("a.safetensors", clip_tca.from_pretrained),
    "stored embeddings": ("a.safetensors", load_embeddings),
    "an array": ("a.npy", lambda path: open_shard(path, None)),
    "a table": ("a.parquet", lambda path: open_shard(path, None)),
    "a picture": ("a.png", decode),
    "a checkpoint": ("a.pt", read_checkpoint),
    "a record": ("a.json", read),
}


@pytest.mark.parametrize("what", OFFLINE)
def test_without_a_network(what, monkeypatch, tmp_path):
    for name in ("HF_HUB_OFFLINE", "http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("CLIP_TCA_DATA", str(tmp_path))
    monkeypatch.setattr("clip_tca.data.image_source.mirrors_of", lambda name: [["http://127.0.0.1:9/a.zip"]])
    with pytest.raises(OfflineError):
        OFFLINE[what]()


@pytest.mark.parametrize("what", CORRUPT)
def test_a_damaged_file(what, tmp_path):
    name, call = CORRUPT[what]
    (tmp_path / name).write_bytes(b"\x93NUMPY nothing of the kind")
    with pytest.raises(CorruptFileError):
        call(tmp_path / name)


def test_bad_input_is_a_plain_value_error(shifted):
    with pytest.raises(ValueError, match="k: 0") as caught:
        LinearTCA(shifted.g, k=0).fit(shifted.z)
    assert not isinstance(caught.value, ClipTcaError)


def test_errors_are_the_builtin_ones_too_and_survive_a_process():
    assert issubclass(OfflineError, (ConnectionError, ValueError))
    assert issubclass(CorruptFileError, ValueError)
    for kind in (OfflineError, CorruptFileError):
        assert issubclass(kind, ClipTcaError)
        assert str(pickle.loads(pickle.dumps(kind("no hub")))) == "no hub"  # noqa: S301


def test_the_network_is_recognized_in_what_led_to_an_error():
    error = OSError("can't load the model")
    error.__cause__ = URLError("no route")
    assert is_offline(error)
    try:
        raise error
    except OSError:  # whoever handles it may meet another one
        with pytest.raises(ValueError, match="unknown") as caught:
            int("unknown")
    assert not is_offline(caught.value)
