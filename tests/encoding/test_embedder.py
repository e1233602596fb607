"""Encoding is paid once: stored, resumed after any death, and honest about pictures that can't be read."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

from clip_tca.datasets.folder import load_folder
from clip_tca.datasets.image_set import ImageSet
from clip_tca.datasets.prompts import load_prompts
from clip_tca.encoding.base import Encoder, Identity
from clip_tca.encoding.decoding import default_workers
from clip_tca.encoding.embedder import Embedder
from clip_tca.encoding.open_clip import OpenClipEncoder
from clip_tca.encoding.store import SHARD, Store
from tests.conftest import INTERRUPTIBLE
from tests.tiny_clip import MODEL


@pytest.fixture(scope="module")
def encoder() -> OpenClipEncoder:
    return OpenClipEncoder(MODEL, device="cpu")


@pytest.fixture
def folder(tmp_path) -> Path:
    """Two domains, two classes, SHARD + 40 pictures in the first."""
    for domain, count in {"day": SHARD // 2 + 20, "night": 5}.items():
        for name, red in {"cat": 0, "dog": 255}.items():
            place = tmp_path / "own" / domain / name
            place.mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (32, 32), (red, i % 256, len(domain) * 20)).save(place / f"{i:04d}.png")
    return tmp_path / "own"


def data_of(folder: Path) -> ImageSet:
    return load_folder(folder)


def test_the_store_gives_back_what_was_encoded(encoder, folder, tmp_path):
    plain = Embedder(encoder, workers=0).pictures(data_of(folder))
    first = Embedder(encoder, Store(tmp_path / "store"), workers=0)
    second = Embedder(encoder, Store(tmp_path / "store"), workers=0)
    z, again = first.pictures(data_of(folder)), second.pictures(data_of(folder))
    for domain in ("day", "night"):
        assert torch.equal(z[domain], plain[domain])
        assert torch.equal(again[domain], plain[domain])
    assert (first.encoded, second.encoded) == (SHARD + 50, 0)


def test_worker_processes_change_nothing(encoder, folder):
    alone, helped = (Embedder(encoder, workers=n).pictures(data_of(folder)) for n in (0, 2))
    assert torch.equal(alone["day"], helped["day"])


def test_an_encoder_of_another_library_needs_the_contract_only(folder, tmp_path):
    class Brightness(Encoder):
        """The mean colour of an image: no library, no text tower."""

        device, precision, model = torch.device("cpu"), "fp32", None
        identity = Identity("brightness", "", "none", "none", {"size": 1}, "fp32", 10.0)
        dim = 3

        @property
        def transform(self):
            return lambda image: torch.tensor(image.getpixel((0, 0)), dtype=torch.float32)

        def encode_images(self, batch):
            return batch / 255

    embedder = Embedder(Brightness(), Store(tmp_path / "store"), workers=0)
    z = embedder.pictures(data_of(folder))["night"]
    assert z[[0, 9]].tolist() == [
        [0, 0, pytest.approx(100 / 255)],
        [1, pytest.approx(4 / 255), pytest.approx(100 / 255)],
    ]
    assert torch.equal(Embedder(Brightness(), Store(tmp_path / "store")).pictures(data_of(folder))["night"], z)
    with pytest.raises(ValueError, match="brightness has no text tower; give a classifier"):
        embedder.texts(load_prompts("single", ["cat", "dog"]))
    with pytest.raises(ValueError, match="brightness has no text tower"):
        _ = Brightness().tokenizer


def test_rows_are_in_the_order_of_the_names(encoder, folder):
    data = data_of(folder)
    z = Embedder(encoder, workers=0, batch=7).pictures(data)["night"]
    for i in range(len(data.domains["night"])):
        picture = Image.open(data.domains["night"].picture(i)).convert("RGB")
        torch.testing.assert_close(
            z[i : i + 1], encoder.encode_images(encoder.transform(picture)[None]), rtol=1e-4, atol=1e-5
        )


def test_only_a_damaged_shard_is_encoded_again(encoder, folder, tmp_path, caplog):
    store = Store(tmp_path / "store")
    z = Embedder(encoder, store, workers=0).pictures(data_of(folder))
    shard = next(path for path in (tmp_path / "store").rglob("00001.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-4])
    again = Embedder(encoder, store, workers=0)
    assert torch.equal(again.pictures(data_of(folder))["day"], z["day"])
    assert again.encoded == 40
    assert "damaged" in caplog.text
    assert shard.stat().st_size > 100


def test_texts_are_stored_too(encoder, tmp_path):
    prompts = load_prompts("watt", ["dog", "house"])
    embedder = Embedder(encoder, Store(tmp_path))
    first = embedder.texts(prompts)
    assert first.shape[:2] == (8, 2)
    assert torch.equal(embedder.texts(prompts), first)
    assert len(list((tmp_path / "texts").iterdir())) == 1


def test_bad_pictures_stop_the_run_before_it_begins(encoder, folder):
    (folder / "night/cat/0001.png").write_bytes(b"")
    (folder / "day/dog/0007.png").write_text("no picture")
    embedder = Embedder(encoder, workers=0)
    with pytest.raises(ValueError, match="2 images can't be read") as stop:
        embedder.pictures(data_of(folder))
    assert "night/cat/0001.png: empty file" in str(stop.value)
    assert "day/dog/0007.png: not an image" in str(stop.value)
    assert "--skip-bad" in str(stop.value)
    assert embedder.encoded == 0


def test_skip_bad_leaves_them_out_of_every_count(encoder, folder, caplog):
    whole = Embedder(encoder, workers=0).pictures(data_of(folder))
    (folder / "night/cat/0001.png").write_bytes(b"")
    data = data_of(folder)
    embedder = Embedder(encoder, workers=0, skip_bad=True)
    z = embedder.pictures(data)
    assert embedder.left_out == 1
    assert len(data.domains["night"]) == len(z["night"]) == len(data.domains["night"].labels) == 9
    assert data.domains["night"].labels == [0] * 4 + [1] * 5
    torch.testing.assert_close(z["night"], whole["night"][[0, *range(2, 10)]], rtol=1e-4, atol=1e-5)
    assert "0001.png" in caplog.text


def spoil(path: Path) -> None:
    """Break a PNG in its middle: header and ending stay as they were."""
    content = bytearray(path.read_bytes())
    middle = content.index(b"IDAT") + 8
    content[middle : middle + 8] = b"\0" * 8
    path.write_bytes(bytes(content))


def test_a_picture_that_only_decoding_shows_to_be_bad(encoder, folder, tmp_path):
    spoil(folder / "night/dog/0002.png")
    with pytest.raises(ValueError, match=r"1 images can't be read(.|\n)*0002\.png"):
        Embedder(encoder, workers=2).pictures(data_of(folder))
    for _ in range(2):  # the second run finds the same, and nothing wrong in the store
        data = data_of(folder)
        embedder = Embedder(encoder, Store(tmp_path / "store"), workers=0, skip_bad=True)
        z = embedder.pictures(data)
        assert embedder.left_out == 1
        assert len(z["night"]) == len(data.domains["night"]) == 9
        assert not torch.isnan(z["night"]).any()


def test_a_domain_with_nothing_to_read_is_an_error(encoder, folder):
    for path in (folder / "night").rglob("*.png"):
        spoil(path)
    with pytest.raises(ValueError, match="night: none of its images can be read"):
        Embedder(encoder, workers=0, skip_bad=True).pictures(data_of(folder))


def test_out_of_memory_halves_the_batch_and_goes_on(encoder, folder, monkeypatch, caplog):
    expected = Embedder(encoder, workers=0).pictures(data_of(folder))["day"]
    sizes = []

    def scarce(batch: torch.Tensor) -> torch.Tensor:
        sizes.append(len(batch))
        if len(batch) > 5:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return OpenClipEncoder.encode_images(encoder, batch)

    monkeypatch.setitem(encoder.__dict__, "encode_images", scarce)
    z = Embedder(encoder, workers=0).pictures(data_of(folder))["day"]
    torch.testing.assert_close(z, expected, rtol=1e-4, atol=1e-5)
    assert sizes[:3] == [16, 8, 4]
    assert sum(size > 4 for size in sizes) == 4  # twice in each of two domains
    assert "4 images at a time" in caplog.text


def test_a_changed_model_or_file_is_encoded_anew(encoder, folder, tmp_path):
    store = Store(tmp_path / "store")
    Embedder(encoder, store, workers=0).pictures(data_of(folder))
    Image.new("RGB", (50, 40)).save(folder / "night/cat/0000.png")
    again = Embedder(encoder, store, workers=0)
    again.pictures(data_of(folder))
    assert again.encoded == 10


def command(folder: Path, output: Path, *more: str) -> list[str]:
    base = [sys.executable, "-c", INTERRUPTIBLE, "-m", "clip_tca", "eval", "--dataset", "folder"]
    base += ["--data-dir", str(folder)]
    return [*base, "--model", MODEL, "--device", "cpu", "--output", str(output), *more]


def result(path: Path) -> dict[str, object]:
    record = json.loads(path.read_text())
    record.pop("cost")
    return record


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_dies_goes_on_and_gives_the_identical_record(how, tmp_path):
    folder = tmp_path / "own"
    for name, red in {"cat": 0, "dog": 255}.items():
        (folder / name).mkdir(parents=True)
        for i in range(2 * SHARD):
            Image.new("RGB", (64, 64), (red, i % 256, i // 4)).save(folder / name / f"{i:04d}.png")
    environment = {**os.environ, "CLIP_TCA_CACHE": str(tmp_path / "undisturbed"), "OMP_NUM_THREADS": "1"}
    options = ("--workers", "1", "--encode-batch-size", "8", "--method", "zero-shot", "--method", "linear-tca")
    subprocess.run(command(folder, tmp_path / "a.json", *options), env=environment, check=True, capture_output=True)
    environment["CLIP_TCA_CACHE"] = str(tmp_path / "killed")
    run = subprocess.Popen(
        command(folder, tmp_path / "b.json", *options), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("embeddings/*/00000.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.005)
    run.send_signal(how)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == (130 if how == signal.SIGINT else -9)
    assert not (tmp_path / "b.json").exists()
    if how == signal.SIGINT:
        assert errors.decode().strip() == "clip-tca: interrupted"
        assert not list((tmp_path / "killed").rglob("*.part"))
    there = len(list((tmp_path / "killed").rglob("0*.safetensors")))
    assert 0 < there < 4
    subprocess.run(command(folder, tmp_path / "b.json", *options), env=environment, check=True, capture_output=True)
    assert result(tmp_path / "b.json") == result(tmp_path / "a.json")
    cost = json.loads((tmp_path / "b.json").read_text())["cost"]
    assert cost["encoded_images"] == (4 - there) * SHARD
    assert not list((tmp_path / "killed").rglob("*.part"))
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_two_runs_at_once_agree_and_encode_once(tmp_path):
    folder = tmp_path / "own"
    for name, red in {"cat": 0, "dog": 255}.items():
        (folder / name).mkdir(parents=True)
        for i in range(SHARD):
            Image.new("RGB", (64, 64), (red, i % 256, 7)).save(folder / name / f"{i:04d}.png")
    environment = {**os.environ, "CLIP_TCA_CACHE": str(tmp_path / "store"), "OMP_NUM_THREADS": "1"}
    options = ("--workers", "1", "--method", "zero-shot")
    outputs = [tmp_path / f"{n}.json" for n in "ab"]
    runs = [subprocess.Popen(command(folder, o, *options), env=environment, stdout=-3, stderr=-3) for o in outputs]
    assert [run.wait(timeout=120) for run in runs] == [0, 0]
    assert result(outputs[0]) == result(outputs[1])
    assert sum(json.loads(o.read_text())["cost"]["encoded_images"] for o in outputs) == 2 * SHARD


def test_a_store_removed_in_the_middle_does_not_matter(encoder, folder, tmp_path):
    store = Store(tmp_path / "store")
    data = data_of(folder)
    expected = Embedder(encoder, workers=0).pictures(data_of(folder))

    class Sweeping(Embedder):
        def _batches(self, *arguments):
            for batch in super()._batches(*arguments):
                shutil.rmtree(tmp_path / "store", ignore_errors=True)
                yield batch

    z = Sweeping(encoder, store, workers=0).pictures(data)
    assert torch.equal(z["day"], expected["day"])


@pytest.mark.parametrize(
    ("cores", "processes", "on_cpu", "elsewhere"),
    [(1, 1, 1, 1), (2, 1, 1, 2), (6, 1, 3, 6), (64, 1, 8, 8), (64, 16, 2, 4)],
)
def test_as_many_workers_as_cores_and_half_where_the_model_needs_them(cores, processes, on_cpu, elsewhere, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(cores)), raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert default_workers(torch.device("cpu")) == on_cpu
    assert default_workers(torch.device("cuda")) == elsewhere


def test_files_of_the_same_names_and_sizes_are_told_apart(encoder, tmp_path):
    for domain, blue in {"a": 0, "b": 255}.items():
        for name, red in {"cat": 0, "dog": 255}.items():
            (tmp_path / "own" / domain / name).mkdir(parents=True)
            Image.new("RGB", (32, 32), (red, 90, blue)).save(tmp_path / "own" / domain / name / "1.bmp")
    embedder = Embedder(encoder, Store(tmp_path / "store"), workers=0)
    z = embedder.pictures(data_of(tmp_path / "own"))
    assert embedder.encoded == 4
    assert not torch.allclose(z["a"], z["b"])


def test_embeddings_that_are_not_finite_are_an_error_not_missing_images(encoder, folder, monkeypatch):
    def overflow(batch: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(False):
            z = OpenClipEncoder.encode_images(encoder, batch).clone()
        z[0] = float("nan")
        return z

    monkeypatch.setitem(encoder.__dict__, "encode_images", overflow)
    with pytest.raises(ValueError, match=r"1 of 10 embeddings are not finite.*--precision fp32"):
        Embedder(encoder, workers=0, skip_bad=True).pictures(
            ImageSet("x", ["a"], {"night": data_of(folder).domains["night"]}, {})
        )


def test_the_three_styles_of_the_demo_are_three_entries():
    from clip_tca.datasets.demo import demo_set

    assert len({domain.fingerprint() for domain in demo_set().domains.values()}) == 3


def test_descriptions_count_as_one_template_the_mean_of_their_unit_embeddings(encoder, tmp_path):
    (tmp_path / "d.json").write_text('{"cat": ["a cat", "a small animal", "it purrs"], "dog": ["a dog"]}')
    prompts = load_prompts(str(tmp_path / "d.json"), ["cat", "dog"])
    text = Embedder(encoder).texts(prompts)
    one = [
        torch.nn.functional.normalize(encoder.encode_texts([t]), dim=1)[0]
        for t in ("a cat", "a small animal", "it purrs")
    ]
    assert text.shape == (1, 2, one[0].shape[0])
    torch.testing.assert_close(text[0, 0], torch.stack(one).mean(dim=0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(text[0, 1], torch.nn.functional.normalize(encoder.encode_texts(["a dog"]), dim=1)[0])
