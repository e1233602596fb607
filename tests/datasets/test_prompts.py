"""Prompts are text files; what is wrong with one is shown by its line."""

from __future__ import annotations

import pytest
from open_clip import IMAGENET_CLASSNAMES

from clip_tca.datasets.prompts import class_names, known_classes, load_prompts
from clip_tca.datasets.registry import BENCHMARKS

WATT = (
    "a photo of a {}",
    "itap of a {}",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)


def test_the_named_templates_are_the_published_ones():
    assert load_prompts("single", ["dog"]).templates == WATT[:1]
    assert load_prompts("watt", ["dog"]).templates == WATT


def test_texts_go_template_by_template():
    prompts = load_prompts("watt", ["dog", "cat"])
    assert prompts.texts()[:3] == ["a photo of a dog", "a photo of a cat", "itap of a dog"]
    assert len(prompts.texts()) == 16


def test_the_fingerprint_follows_templates_and_class_names():
    marks = {
        load_prompts(name, classes).fingerprint() for name in ("single", "watt") for classes in (["dog"], ["a dog"])
    }
    assert len(marks) == 4


def test_ones_own_templates(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("# comment\n\na drawing of a {}\n  {} on a table  \n", encoding="utf-8")
    prompts = load_prompts(str(file), ["cup"])
    assert (prompts.name, prompts.texts()) == ("mine.txt", ["a drawing of a cup", "cup on a table"])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a photo of a {}\na drawing\n", r"line 2: 'a drawing' has no \{\}"),
        (b"# nothing\n", "no template"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_a_bad_template_file_shows_the_line(content, reason, tmp_path):
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        load_prompts(str(tmp_path / "bad.txt"), ["dog"])


def test_an_unknown_name_lists_what_is_there():
    with pytest.raises(FileNotFoundError, match=r"'wat'.*single, watt"):
        load_prompts("wat", ["dog"])


def test_class_names_raw_and_clean():
    raw = list(known_classes("officehome"))
    assert class_names(raw, "raw", "officehome")[:1] == ["Alarm_Clock"]
    readable = class_names(raw, "clean", "officehome")
    assert readable[0] == "alarm clock"
    assert not any("_" in name for name in readable)
    assert class_names(["my_class", "Other"], "clean") == ["my class", "Other"]


def test_class_names_from_a_file(tmp_path):
    (tmp_path / "names.txt").write_text("n01 = tench\nn02=gold fish\n", encoding="utf-8")
    assert class_names(["n01", "n02", "n_03"], str(tmp_path / "names.txt")) == ["tench", "gold fish", "n 03"]
    with pytest.raises(ValueError, match="'n01' is not a class"):
        class_names(["x"], str(tmp_path / "names.txt"))
    with pytest.raises(ValueError, match="raw"):
        class_names(["x"], "nonsense")


def test_classes_are_in_the_order_of_the_folder_names():
    for name, count in {"pacs": 7, "officehome": 65, "vlcs": 5}.items():
        assert BENCHMARKS[name].classes == sorted(BENCHMARKS[name].classes)
        assert len(BENCHMARKS[name].classes) == count


def test_imagenet_s_names_are_those_of_clip_in_the_order_of_the_wordnet_ids(tmp_path):
    classes = known_classes("imagenet-c")
    assert tuple(classes.values()) == tuple(IMAGENET_CLASSNAMES)
    assert list(classes) == sorted(classes)
    assert class_names(list(classes), "clean", "imagenet-c") == list(IMAGENET_CLASSNAMES)
    path = tmp_path / "names.txt"
    path.write_text("n1 = missile\nn2 = missile\n")
    with pytest.raises(ValueError, match="n1 and n2 are both 'missile'"):
        class_names(["n1", "n2"], str(path))


def test_a_repeated_class_is_an_error(tmp_path):
    (tmp_path / "names.txt").write_text("a\nb\na = c\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 3.*repeats"):
        class_names(["a", "b"], str(tmp_path / "names.txt"))


def test_descriptions_name_a_class_by_either_name_in_any_spelling(tmp_path):
    (tmp_path / "cupl.json").write_text(
        '{"Wheaten-Terrier": ["A terrier.", "A dog with a soft coat."], "am GENERAL hummer": ["A car."], "x": ["No."]}'
    )
    prompts = load_prompts(
        str(tmp_path / "cupl.json"), ["hummer", "wheaten terrier"], None, ["AM General/Hummer", "wt"]
    )
    assert prompts.name == "cupl.json"
    assert prompts.templates == ()
    assert prompts.descriptions == (("A car.",), ("A terrier.", "A dog with a soft coat."))
    assert prompts.texts() == ["A car.", "A terrier.", "A dog with a soft coat."]


def test_the_fingerprint_of_descriptions_follows_which_class_a_sentence_is_of(tmp_path):
    marks = set()
    for content in ('{"a": ["1", "2"], "b": ["3"]}', '{"a": ["1"], "b": ["2", "3"]}'):
        (tmp_path / "d.json").write_text(content)
        marks.add(load_prompts(str(tmp_path / "d.json"), ["a", "b"]).fingerprint())
    assert len(marks) == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"a": ["one"]}', r"d\.json: no description of the class 'b'; its 1 names begin with 'a'; add it"),
        ('{"a": ["one"], "b": []}', "'b' has no list of sentences"),
        ('{"a": ["one"], "b": "two"}', "'b' has no list of sentences"),
        ('{"a": ["one"], "b": [" "]}', "'b' has no list of sentences"),
        ("[]", "no classes in it"),
        ("{", "not JSON"),
    ],
)
def test_bad_descriptions_are_refused_in_one_line(content, reason, tmp_path):
    (tmp_path / "d.json").write_text(content)
    with pytest.raises(ValueError, match=reason) as error:
        load_prompts(str(tmp_path / "d.json"), ["a", "b"])
    assert "\n" not in str(error.value)
