"""Sorting makes links or copies that can be undone, and never moves, overwrites or loses anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from clip_tca.cli import main
from clip_tca.labelling.sorting import folder_names, sort_into, undo
from tests.tiny_clip import MODEL


@pytest.fixture
def files(tmp_path) -> list[Path]:
    paths = [tmp_path / "in" / name for name in ("x/1.png", "y/1.png", "z/2.png")]
    for shade, path in enumerate(paths):
        path.parent.mkdir(parents=True)
        Image.new("L", (8, 8), shade).save(path)
    return paths


def below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize("copy", [False, True])
def test_pictures_of_one_name_stay_apart_and_undo_leaves_nothing_but_the_originals(copy, files, tmp_path):
    names, contents = ["x/1.png", "y/1.png", "z/2.png"], [path.read_bytes() for path in files]
    target = tmp_path / "sorted"
    assert sort_into(target, names, [str(path) for path in files], ["dog", "dog", ""], copy) == 3
    assert below(target) == {"dog/1.png", "dog/1 (y).png", "review/2.png", "undo.csv"}
    assert (target / "dog" / "1 (y).png").read_bytes() == contents[1]
    assert (target / "dog" / "1.png").is_symlink() is not copy
    with pytest.raises(ValueError, match="is not empty; name a new folder; or undo the last run"):
        sort_into(target, names, [str(path) for path in files], ["cat"] * 3, copy)
    assert undo(target) == (3, 0)
    assert not target.exists()
    assert [path.read_bytes() for path in files] == contents


def test_undo_keeps_what_a_person_has_changed_or_added(files, tmp_path):
    target = tmp_path / "sorted"
    sort_into(target, ["1.png", "2.png"], [str(path) for path in files[:2]], ["a", "b"], copy=True)
    (target / "a" / "1.png").write_bytes(b"painted over")
    (target / "b" / "note.txt").write_text("mine")
    assert undo(target) == (1, 1)
    assert below(target) == {"a/1.png", "b/note.txt", "undo.csv"}


def test_pictures_of_memory_become_files(tmp_path, files):
    sort_into(tmp_path / "sorted", ["0"], [files[0].read_bytes()], ["dog"])
    assert (tmp_path / "sorted" / "dog" / "0.png").read_bytes() == files[0].read_bytes()


def test_folder_names_are_safe_and_differ():
    names = folder_names(["a/b", "a:b", "review", "..", "Dog", "dog"])
    assert list(names.values()) == ["a_b", "a_b (2)", "review (2)", "_", "Dog", "dog (2)"]


def test_an_edited_list_cannot_reach_outside(tmp_path):
    (tmp_path / "sorted").mkdir()
    (tmp_path / "precious.png").write_bytes(b"x")
    (tmp_path / "sorted" / "undo.csv").write_text("made,mark\n../precious.png,1:0\n")
    with pytest.raises(ValueError, match="which is not in"):
        undo(tmp_path / "sorted")
    assert (tmp_path / "precious.png").exists()


def test_the_command_sorts_and_undoes(files, tmp_path, capsys):
    target = tmp_path / "sorted"
    words = ["label", str(tmp_path / "in"), "--classes", "dog, cat", "--model", MODEL, "--sort-into", str(target)]
    assert main(words) == 0
    assert f"sorted: 3 pictures into {target}" in capsys.readouterr().out
    assert len(below(target)) == 4
    assert main(["label", "--undo", str(target)]) == 0
    assert "removed: 3 links or copies" in capsys.readouterr().out
    assert main(["label", "--undo", str(target)]) == 1
    assert "no such file; name a folder that --sort-into made" in capsys.readouterr().err
