"""``clip_tca.adapt_shard``: a file appears whole, is not made twice, and is never taken for another."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import clip_tca
from clip_tca import LinearTCA, ZeroShotClassifier
from clip_tca.core.files import write_text
from tests.conftest import Shifted
from tests.object_stores import content, upload

SET = Shifted(classes=4, dim=24, images=60)
Z, Y = SET.z.numpy(), SET.y.numpy()
TCA = LinearTCA(SET.g.named(["a", "b", "c", "d"])).fit(SET.z)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("z.npy", Z)
    return tmp_path


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_it_writes_a_file_or_into_a_folder_and_counts(folder):
    result = clip_tca.adapt_shard(TCA, "z.npy", "labels.npy", write=["labels"], labels=Y)
    assert np.array_equal(np.load("labels.npy"), TCA.predict(Z))
    right, before = (int((predict(Z) == Y).sum()) for predict in (TCA.predict, SET.g.predict))
    assert (result.rows, result.correct, result.correct_before, result.skipped) == (len(Z), right, before, False)
    TCA.save("s.safetensors")
    clip_tca.adapt_shard("s.safetensors", "z.npy", "out", write=["embeddings", "labels"], names=True, dtype="float16")
    assert np.load("out/embeddings/z.npy").dtype == np.float16
    assert np.array_equal(np.load("out/labels/z.npy"), TCA.predict(Z, names=True))
    assert files(folder / "out") == {"embeddings/z.npy", "labels/z.npy", ".clip-tca/z.npy.json"}


@pytest.mark.parametrize("target", ["out", "out.npy"])
def test_what_is_done_is_not_done_again(target, folder):
    words = {"write": ["labels"], "labels": Y}
    first = clip_tca.adapt_shard(TCA, "z.npy", target, **words)
    path = Path(target) / "z.npy" if target == "out" else Path(target)
    before = path.stat().st_mtime_ns
    again = clip_tca.adapt_shard(TCA, "z.npy", target, **words)
    assert again == dataclasses.replace(first, skipped=True)
    assert path.stat().st_mtime_ns == before
    path.write_bytes(path.read_bytes()[:-1] + b"\7")  # a file that was damaged since is written again
    assert not clip_tca.adapt_shard(TCA, "z.npy", target, **words).skipped
    assert np.array_equal(np.load(path), TCA.predict(Z))


@pytest.mark.parametrize(
    ("z", "adapter", "words"),
    [
        (None, LinearTCA(SET.g, k=3).fit(SET.z), {}),
        (None, LinearTCA(SET.g).fit(SET.z[:100]), {}),
        (None, TCA, {"dtype": "float16"}),
        (None, TCA, {"write": ["labels"]}),
        (None, TCA, {"labels": Y}),
        (None, TCA, {"drop_bad_rows": True}),
        (Z[::-1], TCA, {}),
    ],
)
def test_what_was_made_of_something_else_is_refused_or_replaced(z, adapter, words, folder):
    clip_tca.adapt_shard(TCA, "z.npy", "out")
    before = Path("out/z.npy").read_bytes()
    if z is not None:
        np.save("z.npy", z)
    with pytest.raises(ValueError, match=r"z\.npy exists, of other inputs or options; .* replace it: --overwrite"):
        clip_tca.adapt_shard(adapter, "z.npy", "out", **words)
    assert Path("out/z.npy").read_bytes() == before
    assert not clip_tca.adapt_shard(adapter, "z.npy", "out", overwrite=True, **words).skipped
    assert clip_tca.adapt_shard(adapter, "z.npy", "out", **words).skipped


def test_the_same_map_with_another_classifier_is_other_work(folder):
    other = copy.deepcopy(TCA)
    other.classifier = ZeroShotClassifier(SET.g.text, 2 * SET.g.scale)
    clip_tca.adapt_shard(TCA, "z.npy", "out.npy", write=["scores"])
    with pytest.raises(ValueError, match="of other inputs or options"):
        clip_tca.adapt_shard(other, "z.npy", "out.npy", write=["scores"])


def test_other_labels_are_counted_anew(folder):
    clip_tca.adapt_shard(TCA, "z.npy", "out.npy", labels=Y)
    wrong = (TCA.predict(Z) + 1) % 4
    assert clip_tca.adapt_shard(TCA, "z.npy", "out.npy", labels=wrong, overwrite=True).correct == 0


@pytest.mark.parametrize("junk", [b"", b"[]", b'{"fingerprint": 3}', b"\xff\xfe" * 40])
def test_a_damaged_mark_says_nothing(junk, folder):
    clip_tca.adapt_shard(TCA, "z.npy", "out")
    Path("out/.clip-tca/z.npy.json").write_bytes(junk)
    with pytest.raises(ValueError, match="--overwrite"):
        clip_tca.adapt_shard(TCA, "z.npy", "out")
    assert not clip_tca.adapt_shard(TCA, "z.npy", "out", overwrite=True).skipped


def test_a_file_of_someone_else_is_never_replaced_unasked(folder):
    Path("out.npy.json").write_text('{"mine": 1}')
    with pytest.raises(ValueError, match=r"out\.npy\.json exists"):
        clip_tca.adapt_shard(TCA, "z.npy", "out.npy")
    assert json.loads(Path("out.npy.json").read_text()) == {"mine": 1}
    for target in ("z.npy", "."):
        with pytest.raises(ValueError, match="is the input; choose another name"):
            clip_tca.adapt_shard(TCA, "z.npy", target, overwrite=True)


@pytest.mark.parametrize("target", ["out", "out.npy"])
def test_a_bad_row_is_named_and_leaves_nothing_or_is_dropped(target, folder):
    z = np.concatenate([Z] * 40)
    z[9000] = np.nan  # in the second block
    np.save("z.npy", z)
    with pytest.raises(ValueError, match=r"z\.npy: NaN or infinity in row 9000; repair it, or leave it out"):
        clip_tca.adapt_shard(TCA, "z.npy", target)
    assert files(folder) == {"z.npy"}
    result = clip_tca.adapt_shard(TCA, "z.npy", target, drop_bad_rows=True)
    assert (result.rows, result.left_out, result.first_left_out) == (len(z) - 1, 1, [9000])


def test_what_another_process_is_writing_is_left_alone(folder):
    code = "import sys; from pathlib import Path; from clip_tca.core.files import atomic\n"
    code += "with atomic(Path('a.txt')) as part: part.write_text('slow'); print('begun', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as slow:
        assert slow.stdout.readline() == b"begun\n"
        write_text(folder / "a.txt", "quick")
        assert (folder / "a.txt").read_text() == "quick"
    assert slow.returncode == 0
    assert (folder / "a.txt").read_text() == "slow"
    assert files(folder) == {"a.txt", "z.npy"}


def test_a_link_stays_one(folder):
    Path("real.npy").write_text("old")
    Path("link.npy").symlink_to("real.npy")
    clip_tca.adapt_shard(TCA, "z.npy", "link.npy", overwrite=True)
    assert Path("link.npy").is_symlink()
    assert len(np.load("real.npy")) == len(Z)


def test_it_works_in_a_store_and_leaves_nothing_here(place, folder, tmp_path_factory, monkeypatch):
    temporary = tmp_path_factory.mktemp("tmp")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    upload(folder, place)
    assert not clip_tca.adapt_shard(TCA, f"{place}/z.npy", f"{place}/out").skipped
    clip_tca.adapt_shard(TCA, "z.npy", "out")
    assert content(f"{place}/out")["z.npy"] == Path("out/z.npy").read_bytes()
    assert clip_tca.adapt_shard(TCA, f"{place}/z.npy", f"{place}/out").skipped
    upload(folder, f"{place}/out")  # the same size, another content
    assert not clip_tca.adapt_shard(TCA, f"{place}/z.npy", f"{place}/out", overwrite=True).skipped
    assert list(temporary.iterdir()) == []
