"""A saved adapter is complete: it holds g, goes on where it was, and is refused in one line if it is damaged."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import clip_tca
from clip_tca import MLPTCA, ConditionalTCA, LinearClassifier, LinearTCA, ZeroShotClassifier
from clip_tca.adapters.state import STATE, checksum
from clip_tca.methods.registry import ADAPTERS
from tests.conftest import ROOT
from tests.hub import Hub

KINDS = [LinearTCA, MLPTCA, ConditionalTCA]
every = pytest.mark.parametrize("kind", KINDS)
NAMES = ("ant", "bee", "big cow", "dog")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.safetensors"


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_saved_adapter_needs_nothing_else(name, shifted, path):
    adapter = ADAPTERS[name].build(shifted.g.named(NAMES)).fit(shifted.z, labels=shifted.y)
    adapter.save(path)
    for loaded in (
        clip_tca.from_pretrained(path),
        type(adapter).from_pretrained(path),
        clip_tca.from_pretrained(str(path), "cpu"),
    ):
        assert type(loaded) is type(adapter)
        assert torch.equal(loaded.logits(shifted.z), adapter.logits(shifted.z))
        assert torch.equal(loaded.transform(shifted.z), adapter.transform(shifted.z))
        assert set(loaded.predict(shifted.z, names=True)) <= set(NAMES)
        assert loaded.explain() == adapter.explain()
        assert repr(loaded) == repr(adapter)
        learned = {name: value for name, value in vars(adapter).items() if name.endswith("_")}
        for attribute, value in learned.items():
            assert torch.equal(torch.as_tensor(vars(loaded)[attribute]), torch.as_tensor(value)), attribute


@every
def test_the_classifier_is_in_it(kind, shifted, path):
    zero_shot = ZeroShotClassifier(shifted.g.text, 40.0, bias=-3.5, classes=NAMES)
    head = LinearClassifier(shifted.g.weight.double(), torch.arange(4.0), normalize=True)
    for g in (zero_shot, head):
        kind(g).fit(shifted.z).save(path)
        found = clip_tca.from_pretrained(path).classifier
        assert type(found) is type(g)
        assert torch.equal(found.logits(shifted.z), g.logits(shifted.z))
        assert (found.classes, found.normalize, found.weight.dtype) == (g.classes, g.normalize, g.weight.dtype)
        assert found.unit_rows == g.unit_rows
        if g is zero_shot:
            assert found.scale == 40.0
            assert torch.equal(found.text, zero_shot.text)


@every
@pytest.mark.parametrize("first", [1, 100, 200])
def test_a_stream_goes_on_where_it_was(kind, first, shifted, path):
    """Also if the last images were seen but not solved for."""
    stream = kind(shifted.g).partial_fit(shifted.z[:first])
    for row in shifted.z[first : first + 5].split(1):
        stream.partial_fit(row)
    stream.save(path)
    loaded = clip_tca.from_pretrained(path)
    assert loaded.n_seen_ == first + 5
    for one in (stream, loaded):
        one.partial_fit(shifted.z[first + 5 :]).solve()
    whole = kind(shifted.g).fit(shifted.z)
    torch.testing.assert_close(loaded.W_, stream.W_, rtol=0, atol=1e-9)
    torch.testing.assert_close(loaded.logits(shifted.z), whole.logits(shifted.z), rtol=1e-4, atol=1e-3)


@every
def test_a_stream_is_solved_when_it_would_have_been(kind, shifted, path):
    """Solved for 30 images and saved with 40 more, ten images later 50 are new."""
    stream = kind(shifted.g, refresh=50).partial_fit(shifted.z[:30]).partial_fit(shifted.z[30:70])
    stream.save(path)
    before, loaded = stream.logits(shifted.z), clip_tca.from_pretrained(path)
    for one in (stream, loaded):
        one.partial_fit(shifted.z[70:80])
    assert not torch.equal(stream.logits(shifted.z), before)
    torch.testing.assert_close(loaded.logits(shifted.z), stream.logits(shifted.z), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"k": np.int64(7), "shrinkage": np.float32(0.5)},
        {"shares": np.array([0.4, 0.3, 0.2, 0.1])},
        {"shares": torch.tensor([4, 3, 2, 1])},
        {"shares": dict(zip(NAMES, (4, 3, 2, 1), strict=True))},
        {"normalize": False, "refresh": 30},
    ],
)
def test_options_of_any_kind_are_saved(options, shifted, path):
    adapter = LinearTCA(shifted.g.named(NAMES), **options).fit(shifted.z)
    adapter.save(path)
    loaded = clip_tca.from_pretrained(path)
    shares = adapter.shares.tolist() if hasattr(adapter.shares, "tolist") else adapter.shares
    assert loaded.shares == shares
    assert (loaded.k, loaded.normalize, loaded.refresh) == (adapter.k, adapter.normalize, adapter.refresh)
    assert torch.equal(loaded.solve().W_, adapter.solve().W_)


@every
def test_an_adapter_of_another_class_is_refused(kind, shifted, path):
    other = LinearTCA if kind is ConditionalTCA else ConditionalTCA
    kind(shifted.g).fit(shifted.z).save(path)
    says = f"holds a {kind.__name__}, not a {other.__name__}; use clip_tca.from_pretrained"
    with pytest.raises(ValueError, match=re.escape(says)):
        other.from_pretrained(path)


def test_files_and_folders_that_are_not_there_are_named(shifted, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"y\.safetensors: no such file or folder; save an adapter there first"):
        clip_tca.from_pretrained(tmp_path / "y.safetensors")
    with pytest.raises(FileNotFoundError, match="create it first"):
        LinearTCA(shifted.g).fit(shifted.z).save(tmp_path / "no" / "x.safetensors")


# -- damage ------------------------------------------------------------------------------------------------------------


@every
def test_a_damaged_file_is_refused_in_one_line(kind, shifted, path):
    """Cut short, or with one wrong bit anywhere."""
    kind(shifted.g).fit(shifted.z).save(path)
    whole = path.read_bytes()
    damaged = [b"", whole[:4], whole[:200], whole[: len(whole) // 2], whole[:-1], whole + b"x"]
    for place in np.linspace(0, len(whole) - 1, 40).astype(int):
        damaged.append(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"state\.safetensors: not a saved clip-tca state, or damaged") as caught:
            clip_tca.from_pretrained(path)
        assert "\n" not in str(caught.value)


def rewritten(path, change) -> None:
    """The state with another header, and a checksum that fits it."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        record = json.loads(file.metadata()["clip_tca"])
    change(record)
    text = json.dumps(record)
    save_file(tensors, path, metadata={"clip_tca": text, "checksum": checksum(text, tensors)})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda record: record.update(format=1), "format 1, this version of clip-tca reads 5"),
        (lambda record: record["options"].update(speed=11), "speed"),
        (lambda record: record.update({"class": "QuadraticTCA"}), "QuadraticTCA"),
        (lambda record: record.pop("values"), "values"),
    ],
)
def test_a_state_of_another_version_is_refused_in_one_line(change, says, shifted, path):
    LinearTCA(shifted.g).fit(shifted.z).save(path)
    rewritten(path, change)
    with pytest.raises(ValueError, match=rf"not a saved clip-tca state, or damaged \(.*{says}.*\); save it again"):
        clip_tca.from_pretrained(path)


def test_a_folder_holds_the_state_its_options_and_a_card_that_tells_what_it_is(shifted, tmp_path):
    adapter = ConditionalTCA(shifted.g.named(NAMES)).fit(shifted.z)
    about = {"model": "tiny CLIP", "data": "240 made-up images", "results": "| method | accuracy |"}
    adapter.save_pretrained(tmp_path / "head", **about)
    assert {path.name for path in (tmp_path / "head").iterdir()} == {STATE, "README.md", "config.json"}
    loaded = clip_tca.from_pretrained(tmp_path / "head")
    assert torch.equal(loaded.logits(shifted.z), adapter.logits(shifted.z))
    told = json.loads((tmp_path / "head" / "config.json").read_text())
    assert (told["class"], told["classes"], told["dimensions"]) == ("ConditionalTCA", list(NAMES), shifted.z.shape[1])
    card = (tmp_path / "head" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: clip-tca\n")
    for part in (*about.values(), "ant, bee, big cow, dog", "Can it be trusted?", "ConditionalTCA", "fitted to 240"):
        assert part in card
    code = card.split("```python\n")[1].split("```")[0].replace('"head"', repr(str(tmp_path / "head")))
    exec(code, found := {"z": shifted.z})  # noqa: S102
    assert set(found["head"].predict(shifted.z, names=True)) <= set(NAMES)


PUSH = """
import sys, torch, clip_tca
from tests.conftest import Shifted
z = Shifted(classes=4, dim=24, images=60)
adapter = clip_tca.LinearTCA(z.g).fit(z.z)
print(adapter.push_to_hub("me/pets-head", model="tiny CLIP", private=True))
for revision in (None, "main"):
    loaded = clip_tca.from_pretrained("me/pets-head", revision=revision)
    assert torch.equal(loaded.logits(z.z), adapter.logits(z.z))
for name in ("me/nothing", "me/pets-head/x", "not there"):
    try: clip_tca.from_pretrained(name)
    except FileNotFoundError as error: print(error)
"""


def test_an_adapter_goes_to_the_hub_and_comes_back(tmp_path):
    with Hub() as hub:
        places = {**hub.environment(tmp_path), "HF_TOKEN": "secret", "PYTHONPATH": str(ROOT)}
        run = lambda code: subprocess.run([sys.executable, "-c", code], env=places, capture_output=True, text=True)  # noqa: E731
        done = run(PUSH)
        assert done.returncode == 0, done.stderr
        address, *errors = done.stdout.splitlines()
        assert address == f"{hub.endpoint}/me/pets-head"
        assert len(errors) == 3
        assert "me/nothing: no such file or folder, and no adapter of that name on the hub" in errors[0]
        files = hub.repositories["models", "me/pets-head"]
        assert set(files) == {STATE, "README.md", "config.json"}
        assert b'clip_tca.from_pretrained("me/pets-head")' in files["README.md"]
        places["HF_TOKEN"] = "wrong"  # noqa: S105
        refused = run(PUSH)
        assert "ConnectionError: me/pets-head could not be uploaded" in refused.stderr.splitlines()[-1]
        assert "hf auth login" in refused.stderr.splitlines()[-1]
    cached = "import clip_tca; print(type(clip_tca.from_pretrained('me/pets-head')).__name__)"
    assert run(cached).stdout == "LinearTCA\n", "what was loaded once is used without the hub"
    assert "can't be reached" in run(PUSH).stderr.splitlines()[-1]
