"""A CLIP model of a few thousand weights, and pictures for it, from arithmetic alone: the same on every machine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from clip_tca.classifier import ZeroShotClassifier
from clip_tca.methods.base import Method, Task, TextPrompts, required_prompts

REFERENCES = Path(__file__).parent / "references"
CLASSES = ("circle", "square", "star", "tree", "wave")
SIZE = 16


def prompted(
    text: Tensor,
    scale: float,
    model: Any = None,
    tokenizer: Callable[[list[str]], Tensor] = lambda texts: torch.empty(0),
    classes: tuple[str, ...] = (),
    templates: tuple[str, ...] = ("{}", "a {}"),
) -> Task:
    """A task with the text embeddings of all templates, as an evaluation builds it."""
    return Task(ZeroShotClassifier(text, scale), model, TextPrompts(classes, templates, text, scale, tokenizer))


def numbers(*shape: int, seed: int) -> Tensor:
    """Numbers from −1 to 1 without visible order: a hash of their position."""
    mask = 0xFFFFFFFF
    x = torch.arange(torch.Size(shape).numel()) + seed * 1_000_003
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & mask
    x = x ^ (x >> 16)
    return (x.double() / mask * 2 - 1).float().reshape(shape)


def pictures(n: int, seed: int = 0, noise: float = 1.5) -> Tensor:
    """Noisy patterns, one of five for each picture in turn, ``(n, 3, 16, 16)``."""
    patterns = functional.interpolate(numbers(5, 3, 4, 4, seed=77), size=SIZE, mode="nearest") * 1.5
    which = torch.arange(n) % 5
    return patterns[which] + noise * numbers(n, 3, SIZE, SIZE, seed=1000 + seed)


def tiny_model(layers: int = 4) -> CLIP:
    """A vision transformer of width 32; every weight follows from its position."""
    vision = CLIPVisionCfg(layers=layers, width=32, head_width=16, patch_size=4, image_size=SIZE)
    text = CLIPTextCfg(context_length=8, vocab_size=64, width=16, heads=2, layers=1)
    model = CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text)
    with torch.no_grad():
        for number, (name, value) in enumerate(sorted(model.named_parameters())):
            made = numbers(*value.shape, seed=number) if value.ndim else torch.zeros(())
            if value.ndim >= 2:
                value.copy_(made * (3 / value[0].numel()) ** 0.5)
            else:
                value.copy_(0.2 * made + (1 if name.endswith("weight") else 0))
    return model.eval()


def tiny_task(scale: float = 12.0, layers: int = 4) -> Task:
    """Texts stand where the clean patterns do, so that the model knows its classes, more or less."""
    model, text = _model_and_text(layers)
    return prompted(
        text,
        scale,
        deepcopy(model),
        lambda texts: torch.tensor([[ord(letter) % 63 for letter in f"{text:8}"[-8:]] for text in texts]),
        CLASSES,
        ("a {}", "the {}"),
    )


def double_task() -> Task:
    """The same in double precision."""
    task = tiny_task()
    prompts = required_prompts(task, "double precision")
    text, model = prompts.embeddings.double(), task.model.double()
    return prompted(text, prompts.scale, model, prompts.tokenizer, prompts.classes, prompts.templates)


@cache
def _model_and_text(layers: int) -> tuple[CLIP, Tensor]:
    model = tiny_model(layers)
    with torch.no_grad():
        clean = functional.normalize(model.encode_image(pictures(5, noise=0.0)), dim=1)
    text = torch.stack([clean - clean.mean(dim=0) + 0.1 * numbers(5, 16, seed=500 + t) for t in range(2)])
    return model, functional.normalize(text, dim=2)


def zero_shot(task: Task, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Embeddings and logits of the model as it is."""
    with torch.no_grad():
        z = functional.normalize(task.model.encode_image(batch), dim=1)
        prompts = required_prompts(task, "zero-shot")
        return z, prompts.scale * z @ functional.normalize(prompts.embeddings.mean(dim=0), dim=1).T


def names(task: Task, part: str) -> set[str]:
    """Names of the image tower's normalisation weights in which ``part`` occurs."""
    return {name for name in task.model.state_dict() if name.startswith("visual.") and ".ln_" in name and part in name}


def changed(task: Task, before: dict[str, Tensor]) -> set[str]:
    """Names of what differs from a copy of the model's state."""
    return {name for name, value in task.model.state_dict().items() if not torch.equal(value, before[name])}


def copy(task: Task) -> dict[str, Tensor]:
    """A copy of the model's state."""
    return {name: value.clone() for name, value in task.model.state_dict().items()}


class Contract:
    """What every method promises; a test class of a method inherits it and says how the method is made."""

    kind: ClassVar[type[Method]]
    options: ClassVar[dict[str, Any]] = {}
    """Larger steps than the published ones, so that something happens."""
    bad: ClassVar[list[tuple[str, Any]]] = []
    references: ClassVar[list[str]] = []

    def make(self, task: Task, **options: Any) -> Any:
        kind: Any = self.kind
        return kind(task, **{**self.options, **options})

    def updated(self, task: Task) -> set[str]:
        return names(task, "")

    def batches(self, task: Task, spec: list[Any] | None = None) -> list[Tensor]:
        shown = [pictures(n, seed, noise) for n, seed, noise in spec or [(8, 0, 1.5), (3, 3, 1.5), (1, 2, 1.5)]]
        return [zero_shot(task, batch)[0] for batch in shown] if self.kind.sees == "embeddings" else shown

    def test_reset_restores_everything(self) -> None:
        task = tiny_task()
        before, batches = copy(task), self.batches(task)
        method = self.make(task)
        first = [method(batch) for batch in batches]
        method.reset()
        assert not changed(task, before)
        for (z, logits), (again_z, again_logits) in zip(first, [method(batch) for batch in batches], strict=True):
            assert torch.equal(z, again_z)
            assert torch.equal(logits, again_logits)

    def test_changes_what_it_says(self) -> None:
        task = tiny_task()
        before, batches = copy(task), self.batches(task)
        plain = zero_shot(task, pictures(8))[1]
        logits = self.make(task)(batches[0])[1]
        assert changed(task, before) == self.updated(task)
        assert (logits - plain).abs().max() > 1e-3

    def test_leaves_no_gradients(self) -> None:
        task = tiny_task()
        for batch in self.batches(task):
            z, logits = self.make(task)(batch)
            assert not z.requires_grad
            assert not logits.requires_grad
            torch.testing.assert_close(z.norm(dim=1), torch.ones(len(z)))
        assert all(value.grad is None for value in task.model.parameters())
        assert self.kind.sees == "embeddings" or not any(value.requires_grad for value in task.model.parameters())

    def test_works_in_inference_mode(self) -> None:
        task = tiny_task()
        method = self.make(task)
        expected = [method(batch)[1] for batch in self.batches(task)]
        method.reset()
        with torch.inference_mode():
            prompts = required_prompts(task, "any")
            text = prompts.embeddings.clone()  # an inference tensor, as an encoder gives it
            task = prompted(text, prompts.scale, task.model, prompts.tokenizer, prompts.classes, prompts.templates)
            method = self.make(task)
            method.reset()
            found = [method(batch.clone())[1] for batch in self.batches(task)]
            method.reset()
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))

    def test_without_continual_every_batch_is_the_first(self) -> None:
        task = tiny_task()
        batches = self.batches(task)
        alone = self.make(task, continual=False)
        found = [alone(batch)[1] for batch in batches]
        alone.reset()
        for batch, logits in zip(batches, found, strict=True):
            once = self.make(task)
            torch.testing.assert_close(once(batch)[1], logits, atol=1e-5, rtol=0)
            once.reset()

    def test_refuses_bad_options(self) -> None:
        task = tiny_task()
        common = [("lr", 0.0), ("lr", "fast"), ("steps", 0), ("steps", 1.5), ("continual", "no")]
        for name, value in [*common, *self.bad]:
            with pytest.raises(ValueError, match=rf"^{name}: .*{re.escape(repr(value))}"):
                self.make(task, **{name: value})

    def test_agrees_with_the_original(self) -> None:
        for name in self.references:
            answers = load_file(REFERENCES / f"{name}.safetensors")
            with safe_open(str(REFERENCES / f"{name}.safetensors"), framework="pt") as opened:
                notes = json.loads(opened.metadata()["notes"])
            task = tiny_task(notes.get("scale", 12.0))
            shown = notes["batches"]
            plain = zero_shot(task, pictures(*shown[0]))[1]
            torch.testing.assert_close(plain, answers["zero_shot_0"], atol=1e-4, rtol=0)
            kind: Any = self.kind
            method = kind(task, **notes["options"])
            self.prepare(method)
            for number, batch in enumerate(self.batches(task, shown)):
                torch.testing.assert_close(method(batch)[1], answers[f"logits_{number}"], atol=1e-4, rtol=0)
            method.reset()

    def prepare(self, method: Any) -> None:
        """What the original had in its memory when it started."""


class TowerContract(Contract):
    """What a method on the image tower promises besides."""

    def test_parts_of_a_batch_give_the_same_step(self) -> None:
        batches = self.batches(tiny_task())
        whole, parts = self.make(tiny_task()), self.make(tiny_task(), micro_batch=3)
        for batch in batches:
            torch.testing.assert_close(parts(batch)[1], whole(batch)[1], atol=1e-4, rtol=0)
