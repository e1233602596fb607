"""A run of ``adapt`` over shards fits on rows of all of them, goes on after a kill, and is the same on Ray."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clip_tca import LinearTCA
from clip_tca.bulk.run import sampled
from clip_tca.cli import main
from clip_tca.data.shards import open_embeddings
from tests.conftest import Shifted
from tests.data.test_formats import FORMATS, write
from tests.object_stores import content, upload

SET = Shifted(classes=4, dim=24, images=60)
Z = SET.z.numpy()
WORDS = ["adapt", "in", "--text", "text.npy", "--write", "embeddings,labels", "--method", "linear-tca"]
WORDS += ["--scale", str(SET.g.scale)]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    np.save("text.npy", SET.g.text.numpy())
    np.save("y.npy", SET.y.numpy())
    for number, part in enumerate(np.array_split(Z, 4)):
        np.save(f"in/z_{number}.npy", part)
    return tmp_path


def files(found: dict[str, bytes]) -> dict[str, object]:
    """Everything but the marks; of the record, what does not change from run to run."""
    records = {name: json.loads(data) for name, data in found.items() if name == "_clip-tca.json"}
    rest = {name: data for name, data in found.items() if not name.startswith((".clip-tca", "_clip-tca"))}
    return rest | {name: {k: v for k, v in record.items() if k != "cost"} for name, record in records.items()}


def unfinish(place: str, *names: str) -> None:
    """Leave what a run that was killed leaves: no record, and some of the shards not at all, or begun."""
    store, key = fsspec.core.url_to_fs(place, use_listings_cache=False)
    for path in store.find(key):
        begun = path.endswith(f"{names[-1]}.npy.json")
        if begun:
            mark = json.loads(store.cat_file(path))
            store.pipe_file(path, json.dumps({"fingerprint": mark["fingerprint"]}).encode())
        elif path.endswith("_clip-tca.json") or any(name in path for name in names):
            store.rm_file(path)


@pytest.mark.parametrize("also", [[], ["--labels", "y.npy", "--drop-bad-rows", "--save-state", "s.safetensors"]])
@pytest.mark.parametrize("where", ["disk", "memory", "s3"])
def test_a_run_that_was_killed_goes_on(where, also, folder, request, capsys):
    if also:
        spoiled = np.load("in/z_1.npy")
        spoiled[3:7] = np.nan
        np.save("in/z_1.npy", spoiled)
    place = str(folder) if where == "disk" else request.getfixturevalue(where)
    words = [*WORDS, *also, "-o", f"{place}/out"]
    assert main(words) == 0
    whole, fit = content(f"{place}/out"), [name for name in content(f"{place}/out") if "fit-" in name]
    unfinish(f"{place}/out", "z_2", "z_3")
    rest = content(f"{place}/out")
    assert len(files(rest)) == 4  # of two shards
    capsys.readouterr()
    assert main(words) == 0
    assert "2 of the shards had been finished by an earlier run" in capsys.readouterr().out
    found = content(f"{place}/out")
    assert files(found) == files(whole)
    assert [name for name in found if "fit-" in name] == fit
    assert main(words) == 0  # all of it is there
    assert "nothing was left to do" in capsys.readouterr().out
    assert files(content(f"{place}/out")) == files(whole)


def test_a_run_that_goes_on_uses_the_map_that_it_began_with(folder):
    assert main([*WORDS, "-o", "out"]) == 0
    unfinish("out", "z_2", "z_3")
    (fit,) = Path("out/.clip-tca").glob("fit-*")
    other = LinearTCA(SET.g, k=3).fit(SET.z)
    other.save(fit)  # so that it is seen which map is used
    assert main([*WORDS, "-o", "out"]) == 1  # the other shards are of another map
    assert main([*WORDS, "-o", "out", "--overwrite"]) == 0
    assert np.array_equal(np.load("out/labels/z_3.npy"), other.predict(np.load("in/z_3.npy")))
    fit.write_bytes(b"damaged")
    assert main([*WORDS, "-o", "out", "--overwrite"]) == 0  # it is fitted again
    assert main([*WORDS, "-o", "whole"]) == 0
    assert files(content("out")) == files(content("whole"))


def test_where_the_record_is_all_shards_are_its_own(folder):
    state = ["adapt", "in", "--load-state", "s.safetensors", "-o", "out"]
    LinearTCA(SET.g).fit(SET.z).save("s.safetensors")
    assert main(state) == 0
    assert Path("out/_clip-tca.json").is_file()
    np.save("in/z_2.npy", np.full_like(np.load("in/z_2.npy"), np.nan))
    assert main([*state, "--write", "labels", "--overwrite"]) == 1  # after two shards
    assert not Path("out/_clip-tca.json").exists()


@pytest.mark.parametrize(
    "words",
    [["--k", "7"], ["--fit-rows", "100"], ["--labels", "y.npy"], ["--drop-bad-rows"], ["other text"], ["other shard"]],
)
def test_with_other_inputs_or_options_it_is_refused_or_replaced(words, folder, capsys):
    assert main([*WORDS, "-o", "out"]) == 0
    unfinish("out", "z_2", "z_3")
    before = content("out")
    if words == ["other text"]:
        np.save("text.npy", SET.g.text.numpy()[::-1])
    elif words == ["other shard"]:
        np.save("in/z_4.npy", Z[:5])
    words = [word for word in words if " " not in word]
    assert main([*WORDS, *words, "-o", "out"]) == 1
    assert "exists, of other inputs or options; choose another name, or replace" in capsys.readouterr().err
    assert content("out") == before
    assert main([*WORDS, *words, "-o", "out", "--overwrite"]) == 0
    assert main([*WORDS, *words, "-o", "whole"]) == 0
    assert files(content("out")) == files(content("whole"))


def test_a_bad_row_that_is_not_in_the_sample_is_named_and_what_is_finished_stays(folder, capsys):
    spoiled = np.load("in/z_3.npy")
    spoiled[59] = np.nan
    np.save("in/z_3.npy", spoiled)
    assert main([*WORDS, "--fit-rows", "64", "-o", "out"]) == 1
    assert "in/z_3.npy: NaN or infinity in row 59; repair it, or leave it out" in capsys.readouterr().err
    assert not Path("out/labels/z_3.npy").exists()
    assert Path("out/labels/z_2.npy").exists()
    assert main([*WORDS, "-o", "all"]) == 1  # in the sample it is named before anything is written
    assert not Path("all").exists()


def test_a_stream_that_learns_in_order_begins_anew(folder, capsys):
    words = [*WORDS, "--online", "--batch-size", "50", "-o", "out"]
    assert main(words) == 0
    whole = files(content("out"))
    unfinish("out", "z_2", "z_3")
    np.save("out/labels/z_0.npy", np.zeros(3))
    assert main(words) == 0
    assert "earlier run" not in capsys.readouterr().out
    assert files(content("out")) == whole


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
@pytest.mark.parametrize("limit", [500, 3000])
def test_the_fit_sees_rows_that_are_spread_evenly_over_all_shards(suffix, limit, tmp_path):
    starts = [0, 1000, 1010, 6000, 10_000]
    for start, stop in zip(starts, [*starts[1:], 20_000], strict=True):
        z, path = np.arange(start, stop, dtype=np.float32)[:, None], tmp_path / f"{start:05d}{suffix}"
        np.save(path, z) if suffix == ".npy" else pq.write_table(pa.table({"embedding": list(z)}), path)
    blocks = list(sampled(open_embeddings(str(tmp_path)).shards, limit))
    rows = np.concatenate([block.z[:, 0] for _, block in blocks])
    assert abs(len(rows) - limit) <= 64
    assert len(np.unique(rows)) == len(rows)
    counts, _ = np.histogram(rows, bins=5, range=(0, 20_000))
    assert np.abs(counts - limit / 5).max() <= 64
    for shard, block in blocks:  # an error could name the row
        assert np.array_equal(block.z[:, 0], float(shard.path.stem) + block.first + np.arange(len(block)))


def test_few_rows_are_all_used_and_all_may_be_asked_for(folder):
    for words in (["--fit-rows", "240"], ["--fit-rows", "all"], []):
        assert main([*WORDS, *words, "-o", "out", "--overwrite"]) == 0
        assert json.loads(Path("out/_clip-tca.json").read_text())["fitted_rows"] == len(Z)


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_is_read_from_a_store_and_written_to_one(suffix, memory, folder):
    name = f"a{suffix}"
    write(folder / name, Z.astype(np.float16))
    upload(folder, memory)
    words = ["--text", f"{memory}/text.npy", "--method", "linear-tca"]
    assert main(["adapt", name, *words, "-o", f"out{suffix}"]) == 0
    assert main(["adapt", f"{memory}/{name}", *words, "-o", f"{memory}/out/{name}"]) == 0
    found = content(f"{memory}/out")
    assert set(found) == {name, f"{name}.json"}
    assert found[name] == Path(f"out{suffix}").read_bytes()
    assert main(["adapt", f"{memory}/*{suffix}", *words, "-o", memory]) == 1


def test_a_bucket_that_does_not_exist_is_one_line(s3, folder, capsys):
    assert main(["adapt", "in", "--text", "text.npy", "-o", "s3://no-such-bucket/out"]) == 1
    assert "s3://no-such-bucket/out" in (error := capsys.readouterr().err)
    assert error.count("\n") == 1


# -- Ray ---------------------------------------------------------------------------------------------------------------

SPOILED = [*WORDS, "--labels", "y.npy", "--drop-bad-rows"]


@pytest.fixture
def spoiled(folder) -> Path:
    z = np.load("in/z_1.npy")
    z[10] = np.nan
    np.save("in/z_1.npy", z)
    return folder


def kill_once(flag: Path) -> object:
    """What a worker does when it starts: prepare to die, once in all workers, between the two files of a shard."""

    def prepare() -> None:
        replace = os.replace

        def replace_or_die(source, target) -> None:
            if str(target).endswith("labels/z_1.npy") and not flag.exists():
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)

        os.replace = replace_or_die

    return prepare


def test_a_shard_whose_worker_was_killed_is_adapted_by_another(spoiled, capfd):
    ray = pytest.importorskip("ray")
    assert main([*SPOILED, "-o", "one"]) == 0
    flag = spoiled / "killed"
    hook = {"worker_process_setup_hook": kill_once(flag)}
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=hook)
    try:
        assert main([*SPOILED, "-o", "two", "--ray"]) == 0
        assert flag.exists()
        assert ray.is_initialized()  # a connection of the caller stays
        state = next(iter(Path("one/.clip-tca").glob("fit-*")))
        capfd.readouterr()
        assert main(["adapt", "in", "--load-state", str(state), "-o", "three", "--ray"]) == 1
    finally:
        ray.shutdown()
    assert files(content("two")) == files(content("one"))
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("clip-tca: ")]
    assert len(errors) == 1
    assert "z_1.npy: NaN or infinity in row 10" in errors[0]


def test_without_an_address_ray_starts_on_this_machine_and_goes_on_with_what_is_there(spoiled, capsys):
    ray = pytest.importorskip("ray")
    assert main([*SPOILED, "-o", "one"]) == 0
    Path("one/labels/z_3.npy").unlink()
    before = files(content("one"))
    capsys.readouterr()
    assert main([*SPOILED, "-o", "one", "--ray"]) == 0
    assert "3 of the shards had been finished by an earlier run" in capsys.readouterr().out
    assert set(files(content("one"))) == {*before, "labels/z_3.npy"}
    assert not ray.is_initialized()


def test_a_cluster_that_is_not_there_is_one_line(spoiled, capsys, monkeypatch):
    assert main([*SPOILED, "-o", "out", "--ray", "127.0.0.1:9"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("clip-tca: ray: no cluster at 127.0.0.1:9 (")
    assert error.count("\n") == 1
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*SPOILED, "-o", "out", "--ray"]) == 1
    missing = 'ray: the package is missing; run pip install ".[ray]" in a checkout of clip-tca'
    assert capsys.readouterr().err == f"clip-tca: {missing}\n"
