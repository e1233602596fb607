"""Files and names that try to run code, to reach other files, or to take all memory; and what fuzzing once found."""

from __future__ import annotations

import re
import resource

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from clip_tca.cli import main, parser
from clip_tca.cli.eval import recipe_lines
from clip_tca.core.folders import resource as bundled
from clip_tca.data.hub import load_hub
from tests.tiny_clip import MODEL


@pytest.fixture
def refused(tmp_path, capsys):
    """Whether ``clip-tca adapt`` refuses a file in ``tmp_path`` in one line that has the word."""

    def adapt(name: str, word: str, dim: int = 6) -> bool:
        np.save(tmp_path / "text.npy", np.random.default_rng(1).standard_normal((3, dim)).astype(np.float32))
        words = ["adapt", tmp_path / name, "--text", tmp_path / "text.npy", "-o", tmp_path / "out"]
        code, message = main(list(map(str, words))), capsys.readouterr().err
        assert (code, message.count("\n")) == (1, 1)
        return re.search(word, message) is not None

    return adapt


def test_a_few_bytes_of_parquet_do_not_become_gigabytes(refused, tmp_path):
    """A run of one number takes no room in a file: 626 bytes once took 4 GB and a minute."""
    zeros = pa.array(np.zeros(1 << 24, np.float32))
    pq.write_table(pa.table({"embedding": pa.ListArray.from_arrays([0, len(zeros)], zeros)}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    assert refused("nowhere.parquet", "no such file")  # the imports
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert refused("a.parquet", r"a\.parquet: .*at most \d+")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def test_offsets_beyond_the_end_of_an_arrow_file_are_not_followed(refused, tmp_path):
    lists = pa.ListArray.from_arrays(pa.array([0, 3, 6], pa.int32()), pa.array(np.ones(6, np.float32)))
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, pa.schema({"e": lists.type})) as out:
        out.write(pa.record_batch({"e": lists}))
    offsets, beyond = (np.array(values, "<i4").tobytes() for values in ([0, 3, 6], [0, 3, 60_000_000]))
    data = (tmp_path / "a.arrow").read_bytes()
    assert data.count(offsets) == 1
    (tmp_path / "a.arrow").write_bytes(data.replace(offsets, beyond))
    assert refused("a.arrow", "truncated or damaged", dim=3)


def test_hostile_folder_and_file_names_go_through_eval_and_report_as_text(tmp_path):
    for number, name in enumerate(("<script>alert(1)<script>", "<img src=x onerror=alert(1)>")):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        for i in range(3):
            Image.effect_noise((40, 40), 20 * (number + 1) + i).convert("RGB").save(folder / f"{i}<b>.png")
    options = ["--dataset", "folder", "--data-dir", str(tmp_path / "data"), "--model", MODEL, "--workers", "0"]
    methods = ["--method", "zero-shot", "--method", "linear-tca", "--examples", "3"]
    assert main(["eval", *options, *methods, "-o", str(tmp_path / "r.json")]) == 0
    assert main(["report", str(tmp_path / "r.json"), "-o", str(tmp_path / "r.html")]) == 0
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.count("<script>") == 1
    assert "<img src=x" not in page
    assert "&lt;script&gt;alert(1)&lt;script&gt;" in page


def test_no_name_leads_out_of_its_folder(tmp_path):
    for name in ("../../pyproject", "../reported/clip_vit_b16", "/etc/passwd\0"):
        with pytest.raises((FileNotFoundError, ValueError)):
            recipe_lines(name, parser(), [])
    for name in ("eval/../pyproject.toml", "/etc/passwd", "prompts/../../x"):
        with pytest.raises(FileNotFoundError, match="not found"):
            bundled(name)
    Image.new("RGB", (9, 9)).save(tmp_path / "private.png")
    (tmp_path / "set").mkdir()
    names = [str(tmp_path / "set" / "../private.png")] * 2
    pq.write_table(pa.table({"image": names, "label": ["a", "b"]}), tmp_path / "set" / "rows.parquet")
    with pytest.raises(ValueError, match="row 0 names"):
        load_hub(str(tmp_path / "set" / "rows.parquet"), None)
