from __future__ import annotations

import json

import pytest

from clip_tca.cli.options import read_shares


def test_shares_from_a_file(tmp_path):
    """Numbers line by line, or names with numbers as CSV or JSON."""
    texts = {"a.txt": "3\n1\n", "b.csv": "dog,3\ncat;1\n", "c.json": json.dumps({"dog": 3, "cat": 1})}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert read_shares(tmp_path / "a.txt") == [3.0, 1.0]
    assert read_shares(tmp_path / "b.csv") == read_shares(tmp_path / "c.json") == {"dog": 3.0, "cat": 1.0}


def test_a_file_without_shares_is_named(tmp_path):
    (tmp_path / "bad.csv").write_text("dog,many\n")
    for name, says in {"missing.txt": "no such file", "bad.csv": "can't be read"}.items():
        with pytest.raises(ValueError, match=rf"{name}.*{says}"):
            read_shares(tmp_path / name)
