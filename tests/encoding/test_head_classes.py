"""Which outputs of a head are the classes of a data set."""

from __future__ import annotations

import re

import pytest
import torch

from clip_tca.classifier import LinearClassifier
from clip_tca.encoding.head_classes import head_for, imagenet_names, imagenet_synsets


def head(count: int, classes=None) -> LinearClassifier:
    made = LinearClassifier(torch.arange(2.0 * count).reshape(count, 2), torch.arange(float(count)))
    made.classes = classes  # as a network's head has them: two outputs may have one name
    return made


def outputs(*args) -> list[int]:
    return [int(value) for value in head_for(*args, "net").bias]


def test_a_head_without_names_has_the_classes_of_the_data_set():
    assert outputs(head(3), ["a", "b", "c"]) == [0, 1, 2]
    assert head_for(head(3), ["a", "b", "c"], "net").classes == ("a", "b", "c")
    message = "model: the head of net has 3 classes, the data set 2 (a, b); name the outputs of the head by --class"
    with pytest.raises(ValueError, match=re.escape(message)):
        outputs(head(3), ["a", "b"])


def test_named_outputs_are_found_in_any_order_and_spelling():
    named = head(4, ["alarm clock", "T-shirt", "dog", "cat"])
    assert outputs(named, ["cat", "Alarm_Clock", "t_shirt"]) == [3, 0, 1]
    message = "class 'horse' of the data set is not one of the 4 classes of net (alarm clock, T-shirt, dog, …); give"
    with pytest.raises(ValueError, match=re.escape(message)):
        outputs(named, ["cat", "horse"])
    with pytest.raises(ValueError, match=r"class 'crane' of the data set is 2 of the 3 classes"):
        outputs(head(3, ["crane", "dog", "crane"]), ["crane", "dog"])


def test_folders_named_by_synsets_are_classes_of_imagenet():
    names, synsets = imagenet_names(1000), imagenet_synsets(1000)
    assert (names[0], synsets[0], names[999], synsets[999]) == ("tench", "n01440764", "toilet tissue", "n15075141")
    assert outputs(head(1000, names), ["n15075141", "n01443537"]) == [999, 1]
    assert outputs(head(1000, names), ["goldfish", "tench"]) == [1, 0]


def test_other_heads_are_no_imagenet():
    assert imagenet_names(7) is None
    assert len(imagenet_names(21841)) == 21841
