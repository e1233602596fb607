"""``clip-tca adapt`` gives what the library gives, in the format of the input, or one clear line and no file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file, save_file

from clip_tca import ConditionalTCA, LinearClassifier, LinearTCA
from clip_tca.cli import main
from clip_tca.data.formats import open_shard
from clip_tca.evaluation.streams import order
from clip_tca.methods.base import Task
from clip_tca.methods.registry import EMBEDDING_BASES, PUBLIC_CODE, ZERO_SHOT, base_method
from tests.conftest import Shifted
from tests.data.test_formats import FORMATS, write
from tests.methods.small import EMBEDDING
from tests.tiny_clip import MODEL

SET = Shifted(classes=4, dim=24, images=60)
Z, Y = SET.z.numpy().astype(np.float16), SET.y.numpy()
SCALE = SET.g.scale


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("text.npy", SET.g.text.numpy())
    np.save("y.npy", Y)
    np.save("z.npy", Z)
    return tmp_path


def adapt(*words: str) -> int:
    if "--load-state" in words:
        return main(["adapt", *words])
    method = [] if "--method" in words else ["--method", "linear-tca"]
    return main(["adapt", *words, *method, "--text", "text.npy", "--scale", str(SCALE)])


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def fitted() -> LinearTCA:
    return LinearTCA(SET.g).fit(torch.from_numpy(Z))


def test_it_says_where_the_scale_came_from_and_doubts_one_that_was_not_in_the_file(folder, capsys):
    save_file({"text": SET.g.text.numpy()}, "text.safetensors", {"scale": "30"})
    words = ["adapt", "z.npy", "--overwrite", "-o", "out.npy", "--text"]
    for text, source in {
        "text.npy": "logit scale: 100 (assumed, as the file of texts has none; --scale S)",
        "text.safetensors": "logit scale: 30 (that of text.safetensors)",
        "text.npy --scale 7": "logit scale: 7 (--scale)",
    }.items():
        assert main([*words, *text.split()]) == 0
        assert source in capsys.readouterr().out
    for scale, doubt in {"1e-3": "it may be too small", "1e6": "it may be too large"}.items():
        assert main([*words, "text.npy", "--scale", scale]) == 0
        assert doubt in capsys.readouterr().err
    save_file({"text": SET.g.text.numpy()}, "sure.safetensors", {"scale": "1e6"})
    assert main([*words, "sure.safetensors"]) == 0
    assert "it may be" not in capsys.readouterr().err


def test_it_ends_with_how_many_changed_the_verdict_and_what_next(folder, capsys):
    g, z = SET.g, torch.from_numpy(Z)
    changed = int((ConditionalTCA(g).fit(z).predict(z) != g.predict(z)).sum())
    for words, verdict in (([], "can't tell without labels"), (["--labels", "y.npy"], "by the labels")):
        assert adapt("z.npy", "-o", "out.npy", "--overwrite", "--method", "conditional-tca", *words) == 0
        *_, first, second, third = capsys.readouterr().out.splitlines()
        assert first == f"conditional-tca changed {changed} of 240 predictions ({changed / 240:.1%})."
        assert verdict in second
        assert third.startswith("What next: ")
    assert adapt("z.npy", "-o", "out.npy", "--overwrite", "--online") == 0
    assert "predictions in a sample" in capsys.readouterr().out


def test_it_is_the_library_s_fit_and_transform(folder, fitted, capsys):
    assert adapt("z.npy", "-o", "out.npy", "--labels", "y.npy") == 0
    out = np.load("out.npy")
    assert out.dtype == np.float16
    assert np.abs(out.astype(np.float32) - fitted.transform(Z.astype(np.float32))).max() < 1e-3
    record = json.loads(Path("out.npy.json").read_text())
    right, before = (int((predict(Z.astype(np.float32)) == Y).sum()) for predict in (fitted.predict, SET.g.predict))
    assert record["scored"]["correct"] == right
    assert record["scored"]["correct_zero_shot"] == before
    assert record["rows"] == len(Z)
    assert f"zero-shot {100 * before / len(Z):.2f}, linear-tca {100 * right / len(Z):.2f}" in capsys.readouterr().out


def test_conditional_tca_is_the_default_and_takes_shares_from_a_file(folder):
    words = ["adapt", "z.npy", "--text", "text.npy", "--scale", str(SCALE), "--write", "labels"]
    assert main([*words, "-o", "out.npy"]) == 0
    z = torch.from_numpy(Z)
    assert np.array_equal(np.load("out.npy"), ConditionalTCA(SET.g).fit(z).predict(z).numpy())
    Path("shares.txt").write_text("3\n3\n1\n1\n")
    assert main([*words, "--shares", "shares.txt", "-o", "known.npy"]) == 0
    known = ConditionalTCA(SET.g, shares=[3, 3, 1, 1]).fit(z)
    assert np.array_equal(np.load("known.npy"), known.predict(z).numpy())


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_comes_back_as_it_was(suffix, folder, fitted):
    write(folder / f"a{suffix}", Z)
    out = "out" if suffix == ".npy" else f"out{suffix}"
    assert adapt(f"a{suffix}", "-o", out, "--write", "embeddings,labels,scores") == 0
    if suffix == ".npy":
        written = {kind: np.load(f"out/{kind}/a.npy") for kind in ("embeddings", "labels", "scores")}
    elif suffix == ".npz":
        with np.load("out.npz") as archive:
            written = {**archive, "embeddings": archive["vectors"]}
    elif suffix == ".safetensors":
        written = load_file("out.safetensors")
        written["embeddings"] = written["vectors"]
    else:
        block = next(open_shard(Path(f"out{suffix}")).blocks())
        assert block.others.column("id").to_pylist() == [f"p{i}" for i in range(len(Z))]
        written = {"embeddings": block.z, "labels": block.others.column("tca_label").to_numpy()}
        written["scores"] = block.others.column("tca_score").to_numpy()
    logits = torch.from_numpy(fitted.logits(Z))
    assert written["labels"].dtype == np.int64
    assert np.array_equal(written["labels"], logits.argmax(dim=1).numpy())
    assert np.allclose(written["scores"], logits.softmax(dim=1).amax(dim=1).numpy(), atol=1e-5)
    assert written["embeddings"].dtype == np.float16
    assert np.allclose(written["embeddings"], fitted.transform(Z), atol=1e-3)


NAMES = ["ant", "bee", "größere Kuh", "dog"]
OURS = ("_clip-tca.json", ".clip-tca")


@pytest.fixture
def names(folder) -> str:
    (folder / "names.txt").write_text("\n".join(NAMES), encoding="utf-8")
    return "names.txt"


def test_labels_are_written_as_names_when_asked(folder, names, fitted, capsys):
    write(folder / "z.parquet", Z)
    expected = fitted.predict(torch.from_numpy(Z))
    for suffix in (".npy", ".parquet"):
        words = ("--write", "labels", "--names", "--class-names", names, "--labels", "y.npy")
        assert adapt(f"z{suffix}", *words, "-o", f"out{suffix}") == 0
        assert f"linear-tca {100 * (expected == SET.y).double().mean():.2f}" in capsys.readouterr().out  # still scored
        assert json.loads(Path(f"out{suffix}.json").read_text(encoding="utf-8"))["classes"] == NAMES
    written = [np.load("out.npy").tolist(), pq.read_table("out.parquet")["tca_label"].to_pylist()]
    assert written == [[NAMES[label] for label in expected]] * 2


def test_names_are_in_the_state_and_in_what_is_exported(folder, names, fitted, capsys):
    assert adapt("z.npy", "-o", "out.npy", "--class-names", names, "--save-state", "s.safetensors") == 0
    again = ("--load-state", "s.safetensors", "--write", "labels", "--names")
    assert adapt("z.npy", "-o", "labels.npy", *again) == 0  # without the file
    expected = [NAMES[label] for label in fitted.predict(torch.from_numpy(Z))]
    assert np.load("labels.npy").tolist() == expected
    assert main(["export", "z.npy", "-o", "head.safetensors"]) == 1
    assert "not a saved clip-tca state" in capsys.readouterr().err
    assert main(["export", "s.safetensors", "-o", "head.safetensors"]) == 0
    head = ("--head", "head.safetensors", "--write", "labels", "--names")
    assert main(["adapt", "z.npy", *head, "-o", "of_head.npy", "--method", "linear-tca"]) == 0
    assert set(np.load("of_head.npy")) <= set(NAMES)


def test_shards_keep_their_names_and_sizes_empty_ones_too(folder, fitted):
    (folder / "in").mkdir()
    for number, part in enumerate(np.split(Z, [100, 100, 230])):
        np.save(f"in/emb_{number}.npy", part)
    assert adapt("in", "-o", "out", "--write", "labels") == 0
    assert {path.name for path in Path("out").glob("*")} == {*(f"emb_{i}.npy" for i in range(4)), *OURS}
    parts = [np.load(f"out/emb_{number}.npy") for number in range(4)]
    assert [len(part) for part in parts] == [100, 0, 130, 10]
    assert np.array_equal(np.concatenate(parts), fitted.predict(Z))


def test_one_pass_in_order_is_the_online_stream(folder):
    assert adapt("z.npy", "-o", "out.npy", "--write", "labels", "--online", "--batch-size", "16") == 0
    tca = LinearTCA(SET.g)
    expected = np.concatenate([tca.partial_fit(part).predict(part) for part in np.split(Z, range(16, len(Z), 16))])
    assert np.array_equal(np.load("out.npy"), expected)


@pytest.mark.parametrize(("method", "make"), [("linear-tca", LinearTCA), ("conditional-tca", ConditionalTCA)])
def test_what_was_learned_can_be_used_again(method, make, folder, capsys):
    np.save("half.npy", Z[:120])
    assert adapt("half.npy", "-o", "a.npy", "--method", method, "--save-state", "s.safetensors") == 0
    capsys.readouterr()
    words = ["--load-state", "s.safetensors", "--labels", "y.npy", "--write", "labels"]
    assert adapt("z.npy", "-o", "b.npy", *words) == 0  # the state says of which class it is
    assert np.array_equal(np.load("b.npy"), make(SET.g).fit(Z[:120]).predict(Z))
    record = json.loads(Path("b.npy.json").read_text())
    assert record["setting"] == "loaded"
    assert record["state"]["sha256"] == hashlib.sha256(Path("s.safetensors").read_bytes()).hexdigest()
    assert "text" not in record
    assert record["method"]["name"] == make.__name__
    assert f", {make.__name__} {record['scored']['accuracy']:.2f}\n" in capsys.readouterr().out


def test_a_fit_can_be_saved_without_writing_anything_and_gives_the_same_output(folder):
    (folder / "in").mkdir()
    for number, part in enumerate(np.array_split(Z, 3)):
        np.save(f"in/{number}.npy", part)
    before = files(folder)
    assert adapt("in", "--fit-only", "--save-state", "s.safetensors") == 0
    assert files(folder) == {*before, "s.safetensors"}
    assert adapt("in", "-o", "one", "--write", "labels") == 0
    for number in range(3):  # as machines do that have a shard each
        words = ("--load-state", "s.safetensors", "--write", "labels", "-o", f"{number}.npy")
        assert adapt(f"in/{number}.npy", *words) == 0
        assert Path(f"{number}.npy").read_bytes() == Path(f"one/{number}.npy").read_bytes()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--fit-only"], "--fit-only needs --save-state FILE; leave out --load-state, --output, --online and --ray"),
        (["--fit-only", "--save-state", "s.safetensors", "-o", "out"], "--fit-only needs"),
        (["--fit-only", "--save-state", "s.safetensors", "--online"], "--fit-only needs"),
        ([], "the following arguments are required: --output/-o"),
        (["-o", "out", "--online", "--ray"], "leave out --load-state and --ray"),
        (["-o", "out", "--load-state", "s.safetensors", "--save-state", "t.safetensors"], "leave out --save-state"),
        (["-o", "out", "--fit-rows", "few"], "--fit-rows: 'few'"),
        (["-o", "out", "--write", "logits"], "allowed are embeddings, labels, scores"),
        (["-o", "out", "no text"], "one of the arguments --text --head --load-state is required"),
    ],
)
def test_words_that_do_not_go_together_are_a_usage_error(words, reason, folder, capsys):
    before = files(folder)
    with pytest.raises(SystemExit, match="2"):
        main(["adapt", "z.npy", *words[:2]]) if "no text" in words else adapt("z.npy", *words)
    assert reason in capsys.readouterr().err
    assert files(folder) == before


def test_class_names_are_encoded_by_a_model(folder):
    np.save("tiny.npy", np.random.default_rng(0).standard_normal((200, EMBEDDING)).astype(np.float32))
    Path("names.txt").write_text("dog\nelephant\nhouse\n")
    words = ["--text", "names.txt", "--model", MODEL, "--prompts", "watt", "-o", "out.npy", "--write", "labels"]
    assert main(["adapt", "tiny.npy", *words]) == 0
    assert set(np.load("out.npy")) <= {0, 1, 2}
    assert json.loads(Path("out.npy.json").read_text())["text"]["model"] == "local-dir:tiny"


def test_bad_rows_are_named_or_dropped(folder, capsys):
    bad = Z.copy()
    bad[7, 3], bad[200] = np.nan, np.inf
    np.save("bad.npy", bad)
    write(folder / "bad.parquet", bad)
    assert adapt("bad.npy", "-o", "out.npy") == 1
    says = "bad.npy: NaN or infinity in row 7, 200; repair it, or leave it out: --drop-bad-rows"
    assert says in capsys.readouterr().err
    assert not Path("out.npy").exists()
    good = np.delete(Z, [7, 200], axis=0)
    expected = LinearTCA(SET.g).fit(good).predict(good)
    words = ("--drop-bad-rows", "--labels", "y.npy", "--write", "labels", "--overwrite")
    for how in ([], ["--online", "--batch-size", str(len(Z))]):
        assert adapt("bad.npy", "-o", "out.npy", *words, *how) == 0
        assert np.array_equal(np.load("out.npy"), expected)
        record = json.loads(Path("out.npy.json").read_text())
        assert record["left_out"] == {"bad.npy": {"rows": 2, "first": [7, 200]}}
        assert record["scored"]["correct"] == int((expected == np.delete(Y, [7, 200])).sum())
    assert "left out: 2 rows of NaN or infinity" in capsys.readouterr().out
    assert adapt("bad.parquet", "-o", "out.parquet", "--drop-bad-rows", "--write", "labels") == 0
    table = pq.read_table("out.parquet")
    assert table.column_names == ["id", "tca_label"]
    assert table["id"].to_pylist() == [f"p{i}" for i in range(len(Z)) if i not in (7, 200)]
    assert np.array_equal(table["tca_label"].to_numpy(), expected)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["none.npy", "-o", "o.npy"], "no such file, folder or pattern"),
        (["z.npy", "-o", "no/o.npy"], "does not exist; create it first"),
        (["z.npy", "-o", "o.npy", "--save-state", "no/s.safetensors"], "save_state: no/s.safetensors can't be written"),
        (["z.npy", "-o", "o.npz"], "the output has the format of the input: name a .npy file, or a folder"),
        (["z.npy", "-o", "o.npy", "--write", "labels,scores"], "can hold one array, not labels and scores"),
        (["z.npy", "-o", "z.npy", "--overwrite"], "is the input"),
        (["z.npy", "-o", "y.npy"], "y.npy exists, of other inputs or options; choose"),
        (["z.npy", "-o", "o.npy", "--labels", "short.txt"], "labels: 2, but there are 240 rows"),
        (["narrow.npy", "-o", "o.npy"], "dimension 3, but the classifier has 24"),
        (["z.npy", "-o", "o.npy", "--shares", "oracle"], "uses true labels"),
        (["z.npy", "-o", "o.npy", "--load-state", "oracle.safetensors"], "uses true labels"),
        (["z.npy", "-o", "o.npy", "--load-state", "other.safetensors"], "other.safetensors: "),
        (["z.npy", "-o", "o.npy", "--load-state", "s.safetensors", "--method", "mlp2-tca"], "leave out --method"),
        (["z.npy", "-o", "o.npy", "--load-state", "s.safetensors", "--k", "3"], "leave out --k"),
        *((["z.npy", "-o", "o.npy", "--load-state", "s.safetensors", option, "text.npy"],
           f"--load-state has its own classifier; leave out {option}") for option in ("--text", "--head", "--model")),
        (["z.npy", "-o", "o.npy", "--load-state", "y.npy"], "not a saved clip-tca state"),
        (["odd.npz", "-o", "o.npz", "--write", "embeddings,labels"], "odd.npz: has an array 'labels' already"),
        (["one.npy", "-o", "o.npy"], "1 row; fit needs at least 2"),
        (["nan.npy", "-o", "o.npy", "--drop-bad-rows"], "0 rows; fit needs at least 2"),
        (["z.npy", "-o", "o.npy", "--names", "--write", "labels"], "names: the classes have none; give a file"),
        (["z.npy", "-o", "o.npy", "--names", "--class-names", "names.txt"], "names: they stand for labels, which are"),
        (["z.npy", "-o", "o.npy", "--class-names", "two.txt"], "classes: 2 names, but there are 4 classes"),
        (["a.safetensors", "-o", "o.safetensors", "--write", "labels", "--names", "--class-names", "names.txt"],
         "names: a .safetensors file holds numbers alone; leave out --names"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_no_file(words, reason, folder, names, fitted, capsys):
    write(folder / "a.safetensors", Z)
    (folder / "two.txt").write_text("a\nb\n")
    fitted.save("s.safetensors")
    LinearTCA(SET.g, **{**PUBLIC_CODE, "k": 2}).fit(Z, labels=Y).save("oracle.safetensors")
    type("Other", (LinearTCA,), {})(SET.g).fit(Z).save("other.safetensors")
    np.save("narrow.npy", Z[:, :3])
    np.save("one.npy", Z[:1])
    np.savez("odd.npz", labels=Z)
    np.save("nan.npy", np.full_like(Z, np.nan))
    Path("short.txt").write_text("0\n1\n")
    before = files(folder)
    capsys.readouterr()
    assert adapt(*words) == 1
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1
    assert files(folder) == before


@pytest.mark.parametrize("text", ["t.npz", "t.safetensors"])
def test_text_embeddings_may_come_with_their_scale(text, folder):
    rows = SET.g.text.numpy()
    if text == "t.npz":
        np.savez(text, text=rows)
        words = ["--scale", str(SCALE)]
    else:
        save_file({"text.single": rows}, text, metadata={"scale": str(SCALE), "classes": '["a", "b", "c", "d"]'})
        words = []
    words = ["adapt", "z.npy", "--method", "linear-tca", "--text", text, *words]
    assert main([*words, "-o", "o.npy", "--write", "labels"]) == 0
    assert np.array_equal(np.load("o.npy"), LinearTCA(SET.g).fit(Z).predict(Z))


def test_columns_of_an_earlier_run_are_carried_along_or_refused(folder, fitted, capsys):
    table = pq.read_table(write(folder / "a.parquet", Z)).append_column("tca_label", pa.array(range(len(Z))))
    pq.write_table(table, "a.parquet")
    assert adapt("a.parquet", "-o", "b.parquet", "--write", "scores") == 0
    table = pq.read_table("b.parquet")
    assert table.column_names == ["id", "tca_label", "tca_score"]
    assert table["tca_label"].to_pylist() == list(range(len(Z)))
    assert np.allclose(table["tca_score"].to_numpy(), torch.from_numpy(fitted.logits(Z)).softmax(1).amax(1), atol=1e-5)
    capsys.readouterr()
    assert adapt("a.parquet", "-o", "c.parquet", "--write", "labels") == 1
    assert capsys.readouterr().err == "clip-tca: a.parquet: has a column 'tca_label' already; rename it\n"


HEAD = LinearClassifier(SET.g.weight.float(), torch.linspace(-1, 1, 4))


@pytest.fixture
def head(folder) -> Path:
    """Features that are not of unit length, and the head that goes with them."""
    np.save("f.npy", 7 * Z)
    save_file({"weight": HEAD.weight.numpy(), "bias": HEAD.bias.numpy()}, "head.safetensors")
    return folder


def test_a_head_takes_the_place_of_texts(head, capsys):
    words = ["adapt", "f.npy", "--head", "head.safetensors", "--labels", "y.npy"]
    assert main([*words, "-o", "o.npy", "--write", "labels", "--save-state", "s.safetensors"]) == 0
    expected = ConditionalTCA(HEAD).fit(7 * Z).predict(7 * Z)
    assert np.array_equal(np.load("o.npy"), expected)
    before, after = (100 * float(np.mean(p == Y)) for p in (HEAD.predict(7 * Z), expected))
    assert f"accuracy (%): head {before:.2f}, conditional-tca {after:.2f}" in capsys.readouterr().out
    record = json.loads(Path("o.npy.json").read_text())
    assert record["head"]["file"] == "head.safetensors"
    assert "text" not in record
    assert record["method"]["parameters"]["normalize"] is False
    assert main(["adapt", "f.npy", "--load-state", "s.safetensors", "-o", "again.npy", "--write", "labels"]) == 0
    assert np.array_equal(np.load("again.npy"), expected)


def test_a_file_of_features_may_bring_its_head(head):
    tensors = {"target.features": 7 * Z, "head.weight": HEAD.weight.numpy(), "head.bias": HEAD.bias.numpy()}
    save_file(tensors, "all.safetensors")
    words = ["adapt", "all.safetensors", "--column", "target.features", "--head", "all.safetensors"]
    assert main([*words, "-o", "o.safetensors"]) == 0
    moved = ConditionalTCA(HEAD).fit(7 * Z).transform(7 * Z)
    np.testing.assert_allclose(load_file("o.safetensors")["target.features"], moved, rtol=2e-2, atol=2e-3)


def test_an_exported_classifier_says_itself_whether_rows_are_scaled(head):
    save_file({"weight": HEAD.weight.numpy()}, "unit.safetensors", metadata={"normalize": "true"})
    words = ["adapt", "f.npy", "--head", "unit.safetensors", "--method", "linear-tca", "--write", "labels"]
    assert main([*words, "-o", "o.npy"]) == 0
    assert np.array_equal(np.load("o.npy"), LinearTCA(LinearClassifier(HEAD.weight)).fit(Z).predict(Z))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--head", "none.safetensors"], "none.safetensors: No such file or directory"),
        (["--head", "y.npy"], "head: y.npy; allowed is a .safetensors file"),
        (["--head", "narrow.safetensors"], "dimension 24, but the classifier has 16"),
        (["--head", "head.safetensors", "--scale", "3"], "leave out --scale"),
        (["--head", "nan.safetensors"], "head: nan.safetensors: weight: 4 of 4 rows hold NaN or infinity"),
    ],
)
def test_a_head_that_does_not_fit_is_refused_and_nothing_is_written(words, reason, head, capsys):
    weight = HEAD.weight.numpy()
    save_file({"weight": np.ascontiguousarray(weight[:, :16])}, "narrow.safetensors")
    save_file({"weight": np.full_like(weight, np.nan)}, "nan.safetensors")
    before = files(head)
    assert main(["adapt", "f.npy", *words, "-o", "o.npy"]) == 1
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1
    assert files(head) == before


@pytest.mark.parametrize("name", [ZERO_SHOT, *EMBEDDING_BASES])
def test_every_method_on_embeddings_labels_rows_as_eval_and_label_do(folder, name, capsys):
    shuffled = order(len(Z), "full", 128, 0)
    z, expected = SET.g.prepared(torch.from_numpy(Z))[shuffled], torch.empty(len(Z), 4)
    if name == ZERO_SHOT:
        expected[shuffled] = SET.g.logits(z)
    else:
        method = base_method(name)(Task(SET.g))
        whole = method.nature == "transductive"
        expected[shuffled] = torch.cat([method(part)[1] for part in z.split(len(z) if whole else 128)])
    assert adapt("z.npy", "-o", "out", "--method", name, "--write", "labels,scores", "--labels", "y.npy") == 0
    assert np.array_equal(np.load("out/labels/z.npy"), expected.argmax(dim=1).numpy())
    np.testing.assert_allclose(np.load("out/scores/z.npy"), expected.softmax(dim=1).amax(dim=1), atol=1e-5)
    shown, changed = capsys.readouterr().out, int((expected.argmax(dim=1) != SET.g.predict(SET.z)).sum())
    assert f"{name} {100 * float((expected.argmax(dim=1) == SET.y).double().mean()):.2f}" in shown
    assert (f"{name} changed {changed} of 240 predictions" in shown) == (name != ZERO_SHOT)


def test_a_stream_is_learned_from_in_order_batch_after_batch(folder):
    assert adapt("z.npy", "-o", "out.npy", "--method", "tda", "--write", "labels", "--online", "--batch-size", "9") == 0
    method = base_method("tda")(Task(SET.g))
    expected = torch.cat([method(part)[1] for part in torch.from_numpy(Z).split(9)])
    assert np.array_equal(np.load("out.npy"), expected.argmax(dim=1).numpy())


def test_a_base_method_goes_on_with_the_shards_that_are_missing(folder, capsys):
    bad = Z.copy()
    bad[[3, 100]] = np.nan
    (folder / "shards").mkdir()
    for number, part in enumerate(np.split(bad, [50, 130])):
        np.save(f"shards/{number}.npy", part)
    words = ["shards", "-o", "out", "--method", "zlap", "--write", "labels", "--drop-bad-rows"]
    assert adapt(*words) == 0
    first = [np.load(f"out/{number}.npy") for number in range(3)]
    assert list(map(len, first)) == [49, 79, 110]
    Path("out/1.npy").unlink()
    assert adapt(*words) == 0
    assert "2 of the shards had been finished" in capsys.readouterr().out
    assert all(np.array_equal(np.load(f"out/{number}.npy"), first[number]) for number in range(3))
    words[4] = "gmm"
    assert adapt(*words) == 1
    assert "exists, of other inputs or options" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "write: tda predicts and moves no embeddings; add --write labels, or scores"),
        (
            "--write labels --fit-rows 100",
            "240 rows, and tda holds all of them in memory; allow that by --fit-rows all",
        ),
        ("--write labels --save-state s.safetensors", "tda keeps no state; leave out --save-state"),
        ("--write labels --ray", "tda keeps no state; leave out --ray"),
        ("--write labels --k 3", "none of tda has an option 'k'"),
        ("--write labels --set positive_shots=-1", "positive_shots: -1; allowed are whole numbers"),
    ],
)
def test_what_a_base_method_can_t_do_is_one_line(folder, words, message, capsys):
    before = files(folder)
    assert adapt("z.npy", "-o", "out.npy", "--method", "tda", *words.split()) == 1
    assert message in capsys.readouterr().err
    assert files(folder) == before
