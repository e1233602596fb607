"""Prompts are text files; what is wrong with one is shown by its line."""

from __future__ import annotations

import pytest
from open_clip import OPENAI_IMAGENET_TEMPLATES

from clip_tca.data.prompts import class_names, known_classes, load_prompts

WATT = (
    *("a photo of a {}", "itap of a {}", "a bad photo of the {}.", "a origami {}.", "a photo of the large {}."),
    *("a {} in a video game.", "art of the {}.", "a photo of the small {}."),
)
OPENAI = tuple(template("{}") for template in OPENAI_IMAGENET_TEMPLATES)


@pytest.mark.parametrize(
    ("name", "dataset", "templates"),
    [
        ("single", None, WATT[:1]),
        ("watt", None, WATT),
        ("clip80", None, OPENAI),
        ("clip", "imagenet-sketch", OPENAI),
        ("clip", "sun397", ("a photo of a {}.", "a photo of the {}.")),
        ("coop", "dtd", ("{} texture.",)),
    ],
)
def test_the_named_templates_are_the_published_ones(name, dataset, templates):
    assert load_prompts(name, ["dog"], dataset).templates == templates


def test_texts_go_template_by_template_and_the_fingerprint_follows_them():
    prompts = load_prompts("watt", ["dog", "cat"])
    assert prompts.texts()[:3] == ["a photo of a dog", "a photo of a cat", "itap of a dog"]
    assert len(prompts.texts()) == 16
    assert len({load_prompts(n, c).fingerprint() for n in ("single", "watt") for c in (["dog"], ["a dog"])}) == 4


def test_ones_own_templates(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("# comment\n\na drawing of a {}\n  {} on a table  \n", encoding="utf-8")
    prompts = load_prompts(str(file), ["cup"])
    assert (prompts.name, prompts.texts()) == ("mine.txt", ["a drawing of a cup", "cup on a table"])


def test_class_names_raw_clean_or_from_a_file(tmp_path):
    raw = list(known_classes("officehome"))
    assert class_names(raw, "raw", "officehome")[0] == "Alarm_Clock"
    assert class_names(raw, "clean", "officehome")[0] == "alarm clock"
    assert class_names(["my_class", "Other"], "clean") == ["my class", "Other"]
    (tmp_path / "names.txt").write_text("n01 = tench\nn02=gold fish\n", encoding="utf-8")
    assert class_names(["n01", "n02", "n_03"], str(tmp_path / "names.txt")) == ["tench", "gold fish", "n 03"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("x = a", "'x' is not a class of this data set"),
        ("n1\nn2\nn1 = c", r"line 3.*repeats"),
        ("n1 = missile\nn2 = missile", "n1 and n2 are both 'missile'"),
        (None, r"'.*' is neither a file nor one of clean, raw"),
    ],
)
def test_class_names_that_do_not_fit_are_refused(content, reason, tmp_path):
    if content is not None:
        (tmp_path / "names.txt").write_text(content)
    with pytest.raises(ValueError, match=reason):
        class_names(["n1", "n2"], str(tmp_path / "names.txt"))


def test_descriptions_name_a_class_by_either_name_in_any_spelling(tmp_path):
    (tmp_path / "cupl.json").write_text(
        '{"Wheaten-Terrier": ["A terrier.", "A dog with a soft coat."], "am GENERAL hummer": ["A car."], "x": ["No."]}'
    )
    prompts = load_prompts(
        str(tmp_path / "cupl.json"), ["hummer", "wheaten terrier"], None, ["AM General/Hummer", "wt"]
    )
    assert (prompts.name, prompts.templates) == ("cupl.json", ())
    assert prompts.descriptions == (("A car.",), ("A terrier.", "A dog with a soft coat."))
    assert prompts.texts() == ["A car.", "A terrier.", "A dog with a soft coat."]


def test_the_fingerprint_of_descriptions_follows_which_class_a_sentence_is_of(tmp_path):
    marks = set()
    for content in ('{"a": ["1", "2"], "b": ["3"]}', '{"a": ["1"], "b": ["2", "3"]}'):
        (tmp_path / "d.json").write_text(content)
        marks.add(load_prompts(str(tmp_path / "d.json"), ["a", "b"]).fingerprint())
    assert len(marks) == 2


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("d.txt", b"a photo of a {}\na drawing\n", r"line 2: 'a drawing' has no \{\}"),
        ("d.txt", b"# nothing\n", "no template"),
        ("d.txt", b"\xff\xfe\x00", "not UTF-8"),
        ("wat", None, r"'.*wat' is neither a file nor one of single, watt"),
        ("d.json", b'{"a": ["1"]}', r"d\.json: no description of the class 'b'; its 1 names begin with 'a'; add it"),
        ("d.json", b'{"a": ["one"], "b": []}', r"Expected `array` of length >= 1.*; write \{"),
        ("d.json", b'{"a": ["one"], "b": [" "]}', r"Expected `str` matching regex.*; write \{"),
        ("d.json", b"[]", "Expected `object`, got `array`; write"),
        ("d.json", b"{", "Input data was truncated; write"),
    ],
)
def test_bad_prompts_are_refused_in_one_line(name, content, reason, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=reason) as error:
        load_prompts(str(tmp_path / name), ["a", "b"])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "dataset"), [("coop", "pacs"), ("clip", "pacs"), ("clip", None)])
def test_templates_by_data_set_are_for_the_sets_of_the_literature(name, dataset):
    with pytest.raises(ValueError, match=rf"prompts: '{name}' .*; allowed are single, watt, clip80 and a file"):
        load_prompts(name, (), dataset)
