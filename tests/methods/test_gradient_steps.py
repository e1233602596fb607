"""Methods that take gradient steps: what all of them promise, what is special to each, and their authors' outputs.

The authors' code of EATA, SAR, TSD, TEA, TIPI and PLC ran on the tiny model of small.py, that of TENT, CLIPArTT and
WATT on those of OpenAI's kinds.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from clip_tca.methods.base import Task, required_prompts
from clip_tca.methods.entropy import EATA, SAR, TEA, TIPI, TSD
from clip_tca.methods.registry import base_method
from clip_tca.methods.weights import PLC
from tests.methods import small
from tests.methods.small import REFERENCES, numbers, patterns, prompted, tiny_task, zero_shot

STRONG: dict[str, dict[str, Any]] = {
    "eata": {"lr": 0.3},
    "plc": {"lr": 0.01},
    "sar": {"lr": 0.3},
    "tea": {"buffer": 10, "langevin_steps": 4},
    "tipi": {"lr": 0.1, "epsilon": 0.1},
    "tsd": {"lr": 0.01},
    "tent": {"steps": 2},
    "clipartt": {"steps": 2},
    "watt-p": {"steps": 1, "repetitions": 2, "lr": 1e-3},
    "watt-s": {"steps": 1, "repetitions": 2, "lr": 1e-3},
}
"""Larger steps than the published ones, so that something happens."""


def names(task: Task, part: str) -> set[str]:
    """Names of the image tower's normalisation weights in which ``part`` occurs."""
    return {name for name in task.model.state_dict() if name.startswith("visual.") and ".ln_" in name and part in name}


def copy(task: Task) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in task.model.state_dict().items()}


def changed(task: Task, before: dict[str, Tensor]) -> set[str]:
    """Names of what differs from a copy of the model's state."""
    return {name for name, value in task.model.state_dict().items() if not torch.equal(value, before[name])}


def make(name: str, task: Task, **options: Any) -> Any:
    kind: Any = base_method(name)
    return kind(task, **{**STRONG[name], **options})


def seen_by(name: str, images: list[Tensor]) -> list[Tensor]:
    """The images, or their embeddings."""
    return [zero_shot(tiny_task(), batch)[0] for batch in images] if name == "plc" else images


def batches(name: str) -> list[Tensor]:
    return seen_by(name, [patterns(8), patterns(3, 3), patterns(1, 2)])


@pytest.mark.parametrize("name", STRONG)
class TestContract:
    def test_changes_what_it_says_and_reset_restores_everything(self, name: str) -> None:
        task, rows = tiny_task(), batches(name)
        before = copy(task)
        method = make(name, task)
        first = [method(batch) for batch in rows[:1]]
        updated = set() if name == "plc" else names(task, "")
        if name == "sar":
            updated -= names(task, "resblocks.3") | names(task, "ln_post")
        assert changed(task, before) == updated
        assert (first[0][1] - zero_shot(tiny_task(), patterns(8))[1]).abs().max() > 1e-3
        first += [method(batch) for batch in rows[1:]]
        method.reset()
        assert not changed(task, before)
        for (z, logits), (again_z, again_logits) in zip(first, [method(batch) for batch in rows], strict=True):
            assert torch.equal(z, again_z)
            assert torch.equal(logits, again_logits)

    def test_leaves_no_gradients(self, name: str) -> None:
        task = tiny_task()
        for batch in batches(name):
            z, logits = make(name, task)(batch)
            assert not z.requires_grad
            assert not logits.requires_grad
            torch.testing.assert_close(z.norm(dim=1), torch.ones(len(z)))
        assert all(value.grad is None for value in task.model.parameters())
        assert name == "plc" or not any(value.requires_grad for value in task.model.parameters())

    def test_works_in_inference_mode(self, name: str) -> None:
        task, rows = tiny_task(), batches(name)
        method = make(name, task)
        expected = [method(batch)[1] for batch in rows]
        method.reset()
        with torch.inference_mode():
            prompts = required_prompts(task, "any")
            text = prompts.embeddings.clone()  # an inference tensor, as an encoder gives it
            task = prompted(text, prompts.scale, task.model, prompts.tokenizer, prompts.classes, prompts.templates)
            method = make(name, task)
            method.reset()
            logits = [method(batch.clone())[1] for batch in rows]
            method.reset()
        assert all(torch.equal(a, b) for a, b in zip(expected, logits, strict=True))

    def test_without_continual_every_batch_is_the_first(self, name: str) -> None:
        task = tiny_task()
        alone = make(name, task, continual=False)
        logits = [alone(batch)[1] for batch in batches(name)]
        alone.reset()
        for batch, expected in zip(batches(name), logits, strict=True):
            once = make(name, task)
            torch.testing.assert_close(once(batch)[1], expected, atol=1e-5, rtol=0)
            once.reset()

    def test_parts_of_a_batch_give_the_same_step(self, name: str) -> None:
        """In double precision: TIPI takes the sign of gradients near zero, which is a matter of rounding."""
        if name == "plc":
            return  # has no micro-batches
        whole, parts = (make(name, tiny_task(dtype=torch.float64), micro_batch=size) for size in (None, 3))
        for batch in batches(name):
            torch.testing.assert_close(parts(batch.double())[1], whole(batch.double())[1], atol=1e-4, rtol=0)


# -- what is special to each -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("eata", {"margin": 0}),  # no image is reliable
        ("plc", {"threshold": 1}),  # no prediction is confident
        ("sar", {"recovery": 10}),  # the loss has collapsed
    ],
)
def test_what_stops_a_step(name: str, options: dict[str, Any]) -> None:
    task = tiny_task()
    before, (batch,) = copy(task), seen_by(name, [patterns(16)])
    logits = make(name, task, **options)(batch)[1]
    assert not changed(task, before)
    torch.testing.assert_close(logits, zero_shot(task, patterns(16))[1])


def test_redundant_images_do_not_count_for_eata() -> None:
    task = tiny_task()
    method = EATA(task, lr=0.3, redundancy=0)
    method(patterns(16))  # the first batch has nothing to be redundant to
    before = copy(task)
    method(patterns(16, seed=1))
    assert not changed(task, before)


@pytest.mark.parametrize(("classes", "published"), [(10, 0.4), (1000, 0.05)])
def test_eata_s_default_redundancy_is_the_published_one(classes: int, published: float) -> None:
    many = prompted(numbers(1, classes, 16, seed=1), 12.0, tiny_task().model)
    assert EATA(many).redundancy == pytest.approx(published)


def test_plc_predicts_without_adapting() -> None:
    task = tiny_task()
    method = PLC(task, lr=0.01)
    z, logits = zero_shot(task, patterns(16))
    torch.testing.assert_close(method.predict(z)[1], logits)
    adapted = method(z)[1]
    assert torch.equal(method.predict(z)[1], adapted)


def test_of_twelve_blocks_sar_leaves_the_last_three() -> None:
    task = tiny_task(layers=12)
    before = copy(task)
    SAR(task, lr=0.3)(patterns(16))
    moved = {number for number in range(12) if changed(task, before) & names(task, f"resblocks.{number}.")}
    assert moved == set(range(9))
    assert names(task, "ln_pre") < changed(task, before)


def test_tea_s_samples_are_in_the_model_s_own_normalisation() -> None:
    task = tiny_task()
    task.model.visual.preprocess_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    samples = TEA(task, langevin_steps=0).sample(patterns(64))
    assert -3.001 < samples.amin().item() < -2.99
    assert samples.amax().item() < 1.001


def test_a_chain_of_tea_goes_on_unless_it_restarts() -> None:
    for restart in (0, 1):
        method = TEA(tiny_task(), buffer=1, restart=restart, langevin_steps=0)
        assert torch.equal(method.sample(patterns(1)), method.sample(patterns(1))) == (not restart)


@pytest.mark.parametrize("epsilon", [2 / 255, 0.1])
def test_tipi_s_shift_has_its_radius(epsilon: float) -> None:
    task, batch = tiny_task(), patterns(8)
    delta = 2 / 255 * numbers(*batch.shape, seed=3)
    shift = TIPI(task, epsilon=epsilon).shift(batch, delta, zero_shot(task, batch)[1]) - batch
    assert shift.abs().max().item() == pytest.approx(epsilon, rel=1e-4)


def test_only_consistent_images_count_for_tsd() -> None:
    logits, similarity = torch.eye(5)[[0, 1, 2]], torch.eye(5)[[0, 3, 2]]
    assert TSD(tiny_task()).agree(logits, similarity).tolist() == [True, False, True]
    assert TSD(tiny_task(), consistent=False).agree(logits, similarity).all()


# -- the originals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stored", ["eata", "plc", "sar", "sar_momentum", "sar_recovery", "tea", "tipi", "tsd", "tsd_cosine"]
)
def test_agrees_with_the_original(stored: str) -> None:
    with safe_open(str(REFERENCES / f"{stored}.safetensors"), framework="pt") as file:
        notes = json.loads(file.metadata()["notes"])
        theirs = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    name, task = stored.split("_")[0], tiny_task(notes.get("scale", 12.0))
    images = [patterns(*spec) for spec in notes["batches"]]
    torch.testing.assert_close(zero_shot(task, images[0])[1], theirs["zero_shot_0"], atol=1e-4, rtol=0)
    kind: Any = base_method(name)
    method = kind(task, **notes["options"])
    if name == "tea":  # the chains of the original when it started
        method.chains = dict(enumerate(numbers(method.buffer, 3, 16, 16, seed=9)))
    for number, batch in enumerate(seen_by(name, images)):
        torch.testing.assert_close(method(batch)[1], theirs[f"logits_{number}"], atol=1e-4, rtol=0)


VIT_PICTURES = [small.pictures(8, name).double() for name in ("first", "second")]
RESNET_PICTURES = [small.pictures(8, name, 64).double() for name in ("first", "second")]
ONLINE = {"steps": 1, "continual": True}
QUICK = {"lr": 1e-3, "steps": 1, "repetitions": 2}


@pytest.mark.parametrize(
    ("name", "stored", "count", "options"),
    [
        ("tent", "tent.vit", 2, {}),
        ("tent", "tent.continual", 2, {"continual": True}),
        ("tent", "tent.1e-4", 1, {"lr": 1e-4}),
        ("tent", "tent.resnet", 2, {}),
        ("tent", "tent.original-online", 2, ONLINE),  # the first authors' code; the others: CLIPArTT's
        ("tent", "tent.single", 0, {}),
        ("clipartt", "clipartt.vit", 2, {}),
        ("clipartt", "clipartt.continual", 2, {"continual": True}),
        ("clipartt", "clipartt.k-1", 1, {"k": 1}),
        ("clipartt", "clipartt.k-5", 1, {"k": 5}),
        ("clipartt", "clipartt.1e-4", 1, {"lr": 1e-4}),
        ("clipartt", "clipartt.resnet", 2, {}),
        ("clipartt", "clipartt.single", 0, {}),
        ("watt-s", "watt.s", 1, {}),
        ("watt-s", "watt.s-1e-3", 2, QUICK),
        ("watt-s", "watt.single", 0, {}),
        ("watt-p", "watt.p", 1, {"repetitions": 3}),
        ("watt-p", "watt.p-1e-3", 2, QUICK),
        ("watt-p", "watt.single", 0, {"repetitions": 1}),
    ],
)
def test_gives_what_the_original_gives(name: str, stored: str, count: int, options: dict[str, Any]) -> None:
    """For ``count`` batches, or one image alone: to that only TENT adapts."""
    file, _, key = stored.partition(".")
    theirs, resnet = load_file(REFERENCES / f"{file}.safetensors"), key in ("resnet", "original-online")
    kind: Any = base_method(name)
    method = kind(small.task(small.clip(small.RESNET if resnet else small.VIT).double()), **options)
    images = RESNET_PICTURES[:count] if resnet else VIT_PICTURES[:count] or [VIT_PICTURES[0][:1]]
    scores = torch.cat([method(batch)[1] for batch in images])[-len(theirs[key]) :]
    torch.testing.assert_close(scores, theirs[key], atol=1e-4, rtol=0)
    if not resnet:
        adapted = (theirs[key][:8] - theirs["plain"][: len(theirs[key])]).abs().max() > (0.1 if count else 1e-4)
        assert adapted == (count > 0 or name == "tent")
