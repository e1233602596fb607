"""A run that was killed goes on: what is finished is verified and kept, the rest written, and nothing is mixed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from clip_tca.adapters.conditional import ConditionalTCA
from clip_tca.adapters.linear import LinearTCA
from clip_tca.bulk.staging import Staging
from clip_tca.bulk.store_output import StoreOutput
from clip_tca.cli import main
from clip_tca.datasets.formats.arrays import ArrayShard
from tests.conftest import Shifted
from tests.object_stores import content, upload

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""An interrupted run leaves the file that it was writing open until its process ends, which here goes on."""

SET = Shifted(classes=4, dim=24, images=60)
Z = SET.z.numpy()
SHARDS = 4
WORDS = ["adapt", "in", "--text", "text.npy", "--write", "embeddings,labels", "--method", "linear-tca"]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    np.save("text.npy", SET.g.text.numpy())
    np.save("y.npy", SET.y.numpy())
    for number, part in enumerate(np.array_split(Z, SHARDS)):
        np.save(f"in/z_{number}.npy", part)
    return tmp_path


def interrupt(monkeypatch, after: int, kind: type = Staging) -> pytest.MonkeyPatch:
    """Interrupt the next run, as Ctrl-C does, when that many shards are finished."""
    finish, done = kind.finish, []

    def counted(self, name, tally, checksums) -> None:
        if len(done) == after:
            raise KeyboardInterrupt
        finish(self, name, tally, checksums)
        done.append(name)

    patch = pytest.MonkeyPatch()
    patch.setattr(kind, "finish", counted)
    return patch


def interrupted(words: list[str], after: int, monkeypatch, kind: type = Staging) -> None:
    patch = interrupt(monkeypatch, after, kind)
    try:
        assert main(words) == 130
    finally:
        patch.undo()


def files(folder: Path) -> dict[str, object]:
    """Everything below a folder; of the record, what does not change from run to run."""
    return {
        str(path.relative_to(folder)): record(path) if path.suffix == ".json" else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def record(path: Path) -> dict[str, object]:
    return {key: value for key, value in json.loads(path.read_text()).items() if key != "cost"}


@pytest.mark.parametrize("also", [[], ["--labels", "y.npy", "--drop-bad-rows", "--save-state", "s.safetensors"]])
def test_it_goes_on_with_what_is_finished_and_neither_fits_nor_reads_it_again(also, folder, monkeypatch, capsys):
    if also:
        spoiled = np.load("in/z_1.npy")
        spoiled[3:7] = np.nan
        np.save("in/z_1.npy", spoiled)
    assert main([*WORDS, *also, "-o", "whole"]) == 0
    interrupted([*WORDS, *also, "-o", "out"], 2, monkeypatch)
    assert "what is finished is kept in" in capsys.readouterr().err
    assert not Path("out").exists()
    read = []
    blocks = ArrayShard.blocks
    monkeypatch.setattr(ArrayShard, "blocks", lambda self, *a: (read.append(self.path.name), blocks(self, *a))[1])
    monkeypatch.setattr(LinearTCA, "_observe", lambda *_: pytest.fail("it is fitted already"))
    assert main([*WORDS, *also, "-o", "out"]) == 0
    assert "2 of the shards had been finished by an earlier run" in capsys.readouterr().out
    assert read == ["z_2.npy", "z_3.npy"]
    assert files(folder / "out") == files(folder / "whole")
    assert [path.name for path in folder.iterdir() if ".part" in path.name] == []


def test_a_finished_shard_that_was_damaged_is_written_again(folder, monkeypatch, capsys):
    assert main([*WORDS, "-o", "whole"]) == 0
    interrupted([*WORDS, "-o", "out"], 3, monkeypatch)
    staged = folder / ".out.part" / "out"
    path = staged / "labels" / "z_1.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\7")
    (staged / "embeddings" / "z_0.npy").unlink()
    (staged / "labels" / "z_9.npy").write_bytes(b"nobody's")
    capsys.readouterr()
    assert main([*WORDS, "-o", "out"]) == 0
    assert "1 of the shards" in capsys.readouterr().out
    assert files(folder / "out") == files(folder / "whole")


def touch(name: str) -> None:
    np.save(name, np.load(name)[::-1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, ["--k", "7"]),
        (None, ["--write", "labels"]),
        (None, ["--dtype", "float16"]),
        (None, ["--method", "conditional-tca"]),
        (lambda: touch("in/z_0.npy"), []),
        (lambda: touch("text.npy"), []),
        (lambda: np.save("in/z_4.npy", Z[:5]), []),
    ],
)
def test_with_other_inputs_or_options_it_begins_anew(change, words, folder, monkeypatch, capsys):
    interrupted([*WORDS, "-o", "out"], 2, monkeypatch)
    if change:
        change()
    capsys.readouterr()
    assert main([*WORDS, *words, "-o", "out"]) == 0
    assert "earlier run" not in capsys.readouterr().out
    assert main([*WORDS, *words, "-o", "whole"]) == 0
    assert files(folder / "out") == files(folder / "whole")


@pytest.mark.parametrize("name", ["run.json", "done/z_0.npy.json", "done/fit.json", "done/fit.safetensors"])
@pytest.mark.parametrize("junk", [b"", b"{", b"[]", b'{"fingerprint": 3}', b"\xff\xfe" * 40, None])
def test_a_broken_staging_folder_gives_the_right_result_all_the_same(name, junk, folder, monkeypatch):
    if not (reference := Path(os.environ["CLIP_TCA_CACHE"]) / "whole").exists():
        assert main([*WORDS, "-o", str(reference)]) == 0
    interrupted([*WORDS, "-o", "out"], 2, monkeypatch)
    path = folder / ".out.part" / name
    path.unlink() if junk is None else path.write_bytes(junk)
    assert main([*WORDS, "-o", "out"]) == 0
    assert files(folder / "out") == files(reference)


def test_a_bad_row_in_a_later_shard_leaves_nothing(folder, capsys):
    spoiled = np.load("in/z_3.npy")
    spoiled[0] = np.nan
    np.save("in/z_3.npy", spoiled)
    assert main([*WORDS, "-o", "out"]) == 1
    assert {path.name for path in folder.iterdir()} == {"in", "text.npy", "y.npy"}


def test_a_stream_that_learns_in_order_begins_anew(folder, monkeypatch, capsys):
    words = [*WORDS, "--online", "-o", "out"]
    interrupted(words, 2, monkeypatch)
    assert not (folder / ".out.part").exists()
    assert main(words) == 0
    assert "earlier run" not in capsys.readouterr().out


def test_a_finished_run_is_refused_as_before_and_replaced_when_asked(folder, monkeypatch, capsys):
    assert main([*WORDS, "-o", "out"]) == 0
    assert main([*WORDS, "-o", "out"]) == 1
    assert "out exists; choose another name, or replace it: --overwrite" in capsys.readouterr().err
    interrupted([*WORDS, "-o", "out", "--overwrite"], 1, monkeypatch)
    assert main([*WORDS, "-o", "out", "--overwrite"]) == 0
    assert "1 of the shards" in capsys.readouterr().out


# -- in a store --------------------------------------------------------------------------------------------------------


def kept(place: str) -> dict[str, bytes]:
    return {name: data for name, data in content(place).items() if not name.startswith("_clip-tca")}


def test_in_a_store_shards_appear_one_by_one_and_the_record_last(place, folder, monkeypatch, capsys):
    assert main([*WORDS, "-o", "whole"]) == 0
    interrupted([*WORDS, "-o", f"{place}/out"], 2, monkeypatch, StoreOutput)
    there = kept(f"{place}/out")
    assert sorted(there) == ["embeddings/z_0.npy", "embeddings/z_1.npy", "labels/z_0.npy", "labels/z_1.npy"]
    assert "_clip-tca.json" not in content(f"{place}/out")
    monkeypatch.setattr(LinearTCA, "_observe", lambda *_: pytest.fail("it is fitted already"))
    capsys.readouterr()
    assert main([*WORDS, "-o", f"{place}/out"]) == 0
    assert "2 of the shards had been finished by an earlier run" in capsys.readouterr().out
    expected = files(folder / "whole")
    found = content(f"{place}/out")
    assert set(found) == set(expected)
    assert {name: data for name, data in found.items() if name in kept(f"{place}/out")} == {
        name: data for name, data in expected.items() if name != "_clip-tca.json"
    }
    assert json.loads(found["_clip-tca.json"])["rows"] == len(Z)
    assert main([*WORDS, "-o", f"{place}/out"]) == 1
    assert "out/_clip-tca.json exists; choose another name, or replace it" in capsys.readouterr().err


def test_in_a_store_what_another_run_wrote_is_not_taken_and_what_was_changed_is_written_again(
    place, folder, monkeypatch, capsys
):
    import fsspec

    interrupted([*WORDS, "-o", f"{place}/out"], 2, monkeypatch, StoreOutput)
    store, key = fsspec.core.url_to_fs(f"{place}/out", use_listings_cache=False)
    assert main([*WORDS, "--k", "3", "-o", f"{place}/out"]) == 1
    assert "z_0.npy exists, of a run with other options or inputs; choose another" in capsys.readouterr().err
    store.pipe_file(f"{key}/labels/z_1.npy", b"spoiled")
    assert main([*WORDS, "-o", f"{place}/out"]) == 0
    assert "1 of the shards" in capsys.readouterr().out
    assert main([*WORDS, "-o", "whole"]) == 0
    expected = {name: data for name, data in files(folder / "whole").items() if name != "_clip-tca.json"}
    assert kept(f"{place}/out") == expected
    assert main([*WORDS, "--k", "3", "-o", f"{place}/out", "--overwrite"]) == 0
    assert kept(f"{place}/out") != expected
    assert json.loads(content(f"{place}/out")["_clip-tca.json"])["method"]["parameters"]["k"] == 3


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".parquet", ".arrow", ".feather"])
def test_every_format_is_read_from_a_store_and_written_to_one(suffix, memory, tmp_path, monkeypatch):
    from tests.datasets.test_formats import write

    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    np.save("text.npy", SET.g.text.numpy())
    write(tmp_path / "in" / f"a{suffix}", Z.astype(np.float16))
    upload(tmp_path, memory)
    words = ["--text", f"{memory}/text.npy", "--method", "linear-tca"]
    name = f"a{suffix}"
    assert main(["adapt", f"in/{name}", *words, "-o", name]) == 0
    assert main(["adapt", f"{memory}/in/{name}", *words, "-o", f"{memory}/out/{name}"]) == 0
    found = content(f"{memory}/out")
    assert set(found) == {name, f"{name}.json"}
    if suffix != ".safetensors":  # its library writes the header in any order
        assert found[name] == Path(name).read_bytes()
    assert main(["adapt", f"{memory}/in/{name}", *words, "-o", f"{memory}/out/{name}"]) == 1
    assert main(["adapt", f"{memory}/in/*{suffix}", *words, "-o", f"{memory}/in"]) == 1


def test_a_bucket_that_does_not_exist_is_noticed_before_the_work(s3, folder, monkeypatch, capsys):
    monkeypatch.setattr(ConditionalTCA, "_observe", lambda *_: pytest.fail("it began to work"))
    assert main(["adapt", "in", "--text", "text.npy", "-o", "s3://no-such-bucket/out"]) == 1
    assert "s3://no-such-bucket/out/_clip-tca/run.json: no such file, folder or bucket" in capsys.readouterr().err


def test_a_loaded_state_is_recognised_by_its_file(folder, monkeypatch, capsys):
    for name, method in {"a": "linear-tca", "b": "conditional-tca"}.items():
        words = ["adapt", "in", "--text", "text.npy", "--method", method]
        assert main([*words, "--fit-only", "--save-state", f"{name}.safetensors"]) == 0
    interrupted(["adapt", "in", "--load-state", "a.safetensors", "-o", "out"], 2, monkeypatch)
    capsys.readouterr()
    (folder / "a.safetensors").rename("c.safetensors")  # another name, the same content
    interrupted(["adapt", "in", "--load-state", "c.safetensors", "-o", "out"], 1, monkeypatch)
    assert main(["adapt", "in", "--load-state", "c.safetensors", "-o", "out"]) == 0
    assert "3 of the shards had been finished by an earlier run" in capsys.readouterr().out
    interrupted(["adapt", "in", "--load-state", "c.safetensors", "-o", "out", "--overwrite"], 2, monkeypatch)
    assert main(["adapt", "in", "--load-state", "b.safetensors", "-o", "out", "--overwrite"]) == 0
    assert "earlier run" not in capsys.readouterr().out
