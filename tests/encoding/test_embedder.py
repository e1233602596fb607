"""Encoding is paid once: stored, resumed after any death, and honest about pictures that can't be read."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from PIL import Image

from clip_tca.data.corruptions import Corruption
from clip_tca.data.folder import load_folder
from clip_tca.data.hub import load_hub
from clip_tca.data.prompts import load_prompts
from clip_tca.encoding.decoding import default_workers
from clip_tca.encoding.embedder import ON_CPU, Embedder
from clip_tca.encoding.open_clip import OpenClipEncoder
from clip_tca.encoding.store import Store
from tests.tiny_clip import MODEL


@pytest.fixture(scope="module")
def encoder() -> OpenClipEncoder:
    return OpenClipEncoder(MODEL, device="cpu")


def make(folder: Path, images: int) -> Path:
    """Two classes with so many pictures each."""
    for name, red in {"cat": 0, "dog": 255}.items():
        (folder / name).mkdir(parents=True)
        for i in range(images):
            Image.new("RGB", (32, 32), (red, i, len(folder.name) * 20)).save(folder / name / f"{i:04d}.png")
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two domains of 60 and 10 pictures."""
    make(tmp_path / "own" / "day", 30)
    make(tmp_path / "own" / "night", 5)
    return tmp_path / "own"


def test_the_store_gives_back_what_was_encoded(encoder, folder, tmp_path):
    plain = Embedder(encoder, workers=2).pictures(load_folder(folder))
    first = Embedder(encoder, Store(tmp_path / "store"), workers=0)
    second = Embedder(encoder, Store(tmp_path / "store"), workers=0)
    z, again = first.pictures(load_folder(folder)), second.pictures(load_folder(folder))
    for domain in ("day", "night"):
        assert torch.equal(z[domain], plain[domain]), "threads change nothing"
        assert torch.equal(again[domain], plain[domain])
    night = load_folder(folder).domains["night"]
    alone = [encoder.encode_images(encoder.transform(night.image(i))[None]) for i in range(len(night))]
    torch.testing.assert_close(z["night"], torch.cat(alone), rtol=1e-4, atol=1e-5)
    assert (first.encoded, second.encoded) == (70, 0)


def test_a_terminal_shows_how_many_pictures_of_all_domains_are_encoded(encoder, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("clip_tca.core.progress.DELAY", 0.0)
    line = (
        f"encoding 70 pictures with {encoder.identity.model} on cpu; the embeddings are kept, so later runs skip this"
    )
    shown = []
    for terminal in (False, True, True):
        store = Store(tmp_path / str(terminal))
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal, raising=False)
        Embedder(encoder, store, workers=0, progress=True).pictures(load_folder(folder))
        shown.append(capsys.readouterr().err)
    assert [line in text for text in shown] == [False, True, False], "the third run finds them in the store"
    assert "of 70" in shown[1], "one bar for both domains"
    assert "of 10" not in shown[1]


def test_only_pictures_whose_content_is_new_are_encoded(encoder, folder, tmp_path):
    store = Store(tmp_path / "store")

    def run(place: Path) -> tuple[dict[str, torch.Tensor], int]:
        embedder = Embedder(encoder, store, workers=0)
        return embedder.pictures(load_folder(place)), embedder.encoded

    z, _ = run(folder)
    Image.new("RGB", (50, 40)).save(folder / "night/cat/more.png")
    more, encoded = run(folder)
    assert encoded == 1
    assert torch.equal(more["day"], z["day"])
    assert torch.equal(more["night"][[0, 1, 2, 3, 4, *range(6, 11)]], z["night"])
    folder.rename(tmp_path / "renamed")
    (tmp_path / "renamed/night/cat/more.png").rename(tmp_path / "renamed/night/dog/moved.png")
    moved, encoded = run(tmp_path / "renamed")
    assert encoded == 0
    assert torch.equal(moved["night"][-1], more["night"][5])
    Image.new("RGB", (50, 41)).save(tmp_path / "renamed/night/dog/moved.png")
    assert run(tmp_path / "renamed")[1] == 1


def test_pictures_in_a_table_share_the_embeddings_of_the_same_files(encoder, folder, tmp_path):
    datasets = pytest.importorskip("datasets")
    paths = sorted((folder / "night").rglob("*.png"))
    rows = [{"image": {"bytes": path.read_bytes(), "path": None}, "label": path.parent.name} for path in paths]
    features = datasets.Features(image=datasets.Image(), label=datasets.Value("string"))
    datasets.Dataset.from_list(rows, features).to_parquet(tmp_path / "night.parquet")
    store = Store(tmp_path / "store")
    z = Embedder(encoder, store, workers=0).pictures(load_folder(folder))
    table = Embedder(encoder, store, workers=0)
    (rows_,) = table.pictures(load_hub(str(tmp_path / "night.parquet"), None)).values()
    assert table.encoded == 0
    assert torch.equal(rows_, z["night"])


def test_bf16_on_a_cpu_agrees_with_float32_to_two_percent_and_leaves_the_model_as_it_is(encoder, folder):
    half, data = OpenClipEncoder(MODEL, device="cpu", precision="bf16"), load_folder(folder)
    exact, rounded = (Embedder(each, workers=2).pictures(data)["day"] for each in (encoder, half))
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).norm() < 0.02 * exact.norm()
    assert next(half.model.parameters()).dtype == torch.float32
    assert torch.equal(half.encode_texts(["a dog"]), encoder.encode_texts(["a dog"]))
    assert half.identity != encoder.identity


def test_a_picture_that_is_there_twice_is_encoded_once(encoder, folder):
    (folder / "night/dog/copy.png").write_bytes((folder / "night/cat/0000.png").read_bytes())
    embedder = Embedder(encoder, workers=0)
    z = embedder.pictures(load_folder(folder))
    assert embedder.encoded == 70
    assert torch.equal(z["night"][0], z["night"][-1])


def test_the_noise_of_a_corruption_is_part_of_the_key(encoder, folder, tmp_path):
    store, data = Store(tmp_path / "store"), load_folder(folder)
    for corruption, encoded in [
        (None, 70),
        ("gaussian_noise:3", 70),
        ("gaussian_noise:4", 70),
        ("gaussian_noise:3", 0),
    ]:
        embedder = Embedder(encoder, store, workers=0)
        embedder.pictures(data.corrupted(Corruption.parse(corruption)) if corruption else data)
        assert embedder.encoded == encoded


def test_texts_are_stored_one_by_one(encoder, tmp_path, monkeypatch):
    embedder, prompts = Embedder(encoder, Store(tmp_path)), load_prompts("watt", ["dog", "house"])
    first, asked = embedder.texts(prompts), []
    assert first.shape[:2] == (8, 2)
    monkeypatch.setitem(
        encoder.__dict__, "encode_texts", lambda texts: asked.extend(texts) or torch.zeros(len(texts), 32)
    )
    assert torch.equal(embedder.texts(prompts), first)
    assert asked == []
    more = embedder.texts(load_prompts("watt", ["dog", "house", "cat"]))
    assert torch.equal(more[:, :2], first)
    assert len(asked) == 8
    assert all("cat" in text for text in asked)


def test_descriptions_count_as_one_template_the_mean_of_their_unit_embeddings(encoder, tmp_path):
    (tmp_path / "d.json").write_text('{"cat": ["a cat", "it purrs"], "dog": ["a dog"]}')
    text = Embedder(encoder).texts(load_prompts(str(tmp_path / "d.json"), ["cat", "dog"]))
    one = torch.nn.functional.normalize(encoder.encode_texts(["a cat", "it purrs"]), dim=1)
    assert text.shape == (1, 2, one.shape[1])
    torch.testing.assert_close(text[0, 0], one.mean(dim=0), atol=1e-5, rtol=1e-4)


def spoil(path: Path) -> None:
    """Break a PNG in its middle: header and ending stay as they were."""
    content = bytearray(path.read_bytes())
    middle = content.index(b"IDAT") + 8
    content[middle : middle + 8] = b"\0" * 8
    path.write_bytes(bytes(content))


def test_bad_pictures_stop_the_run_unless_they_are_left_out(encoder, folder, tmp_path, caplog):
    whole = Embedder(encoder, workers=0).pictures(load_folder(folder))
    (folder / "night/cat/0001.png").write_bytes(b"")
    (folder / "night/cat/0003.png").write_text("no picture")
    spoil(folder / "night/dog/0002.png")
    for workers in (0, 2):
        with pytest.raises(ValueError, match=r"3 images can't be read.*--skip-bad") as stop:
            Embedder(encoder, workers=workers).pictures(load_folder(folder))
        assert "night/cat/0001.png: " in str(stop.value)
        assert "night/cat/0003.png: not an image" in str(stop.value)
    for _ in range(2):  # the second run finds the same, and nothing wrong in the store
        data, embedder = load_folder(folder), Embedder(encoder, Store(tmp_path / "store"), workers=0, skip_bad=True)
        z = embedder.pictures(data)
        assert embedder.left_out == 3
        assert data.domains["night"].labels == [0] * 3 + [1] * 4
        torch.testing.assert_close(z["night"], whole["night"][[0, 2, 4, 5, 6, 8, 9]], rtol=1e-4, atol=1e-5)
    assert "left out: own/night/dog/0002.png: " in caplog.text


@pytest.mark.parametrize("damage", [spoil, lambda path: path.write_bytes(b"")])
def test_a_domain_with_nothing_to_read_is_an_error(encoder, folder, damage):
    for path in (folder / "night").rglob("*.png"):
        damage(path)
    with pytest.raises(ValueError, match="night: none of its images can be read"):
        Embedder(encoder, workers=0, skip_bad=True).pictures(load_folder(folder))


def test_out_of_memory_halves_the_batch_and_goes_on(encoder, folder, monkeypatch, caplog):
    expected = Embedder(encoder, workers=0).pictures(load_folder(folder))["day"]
    sizes = []

    def scarce(batch: torch.Tensor) -> torch.Tensor:
        sizes.append(len(batch))
        if len(batch) > 5:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return OpenClipEncoder.encode_images(encoder, batch)

    monkeypatch.setitem(encoder.__dict__, "encode_images", scarce)
    z = Embedder(encoder, workers=0).pictures(load_folder(folder))["day"]
    torch.testing.assert_close(z, expected, rtol=1e-4, atol=1e-5)
    assert sizes[:3] == [8, 4, 4]
    assert "4 images at a time" in caplog.text


def test_embeddings_that_are_not_finite_are_an_error_not_missing_images(encoder, folder, monkeypatch):
    monkeypatch.setitem(encoder.__dict__, "encode_images", lambda batch: torch.full((len(batch), 4), float("nan")))
    with pytest.raises(ValueError, match=r"8 of 8 embeddings are not finite.*--precision fp32"):
        Embedder(encoder, workers=0, skip_bad=True).pictures(load_folder(folder))


def test_an_interrupted_run_goes_on_at_the_first_missing_batch(encoder, folder, tmp_path, monkeypatch):
    """tests/robustness kills runs; this one ends at the third batch."""
    expected = Embedder(encoder, workers=0).pictures(load_folder(folder))
    store, encode, batches = Store(tmp_path / "store"), encoder.encode_images, []

    def interrupted(batch: torch.Tensor) -> torch.Tensor:
        batches.append(batch)
        if len(batches) == 3:
            raise KeyboardInterrupt
        return encode(batch)

    monkeypatch.setitem(encoder.__dict__, "encode_images", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Embedder(encoder, store, workers=0).pictures(load_folder(folder))
    second = Embedder(encoder, store, workers=0)
    z = second.pictures(load_folder(folder))
    assert second.encoded == 70 - 2 * ON_CPU
    assert all(torch.equal(z[name], rows) for name, rows in expected.items())


def test_two_runs_at_once_agree_and_encode_once(encoder, folder, tmp_path):
    runs = [Embedder(encoder, Store(tmp_path / "store"), workers=0) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda run: run.pictures(load_folder(folder)), runs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert runs[0].encoded + runs[1].encoded == 70


@pytest.mark.parametrize(("cores", "on_cpu", "elsewhere"), [(1, 1, 1), (2, 1, 2), (6, 3, 6), (64, 8, 8)])
def test_as_many_workers_as_cores_and_half_where_the_model_needs_them(cores, on_cpu, elsewhere, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(cores)), raising=False)
    assert default_workers(torch.device("cpu")) == on_cpu
    assert default_workers(torch.device("cuda")) == elsewhere
