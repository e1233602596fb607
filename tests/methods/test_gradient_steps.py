"""Methods that take gradient steps: what all of them promise, what is special to each, and their authors' outputs.

The authors' code of EATA, SAR, TSD, TEA, TIPI and PLC ran on the model of tiny.py, that of TENT, CLIPArTT and WATT on
those of small.py.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch

from clip_tca.methods.base import Method, Task
from clip_tca.methods.clipartt import CLIPArTT
from clip_tca.methods.eata import EATA
from clip_tca.methods.plc import PLC
from clip_tca.methods.sar import SAR
from clip_tca.methods.tea import TEA
from clip_tca.methods.tent import Tent
from clip_tca.methods.tipi import TIPI
from clip_tca.methods.tsd import TSD
from clip_tca.methods.watt import WattP, WattS
from tests.methods import small
from tests.methods.tiny import (
    Contract,
    TowerContract,
    changed,
    copy,
    double_task,
    names,
    numbers,
    pictures,
    prompted,
    tiny_task,
    zero_shot,
)


class TestEATA(TowerContract):
    kind: ClassVar[type[Method]] = EATA
    options: ClassVar[dict[str, Any]] = {"lr": 0.3}
    bad: ClassVar[list[tuple[str, Any]]] = [("margin", 1.5), ("margin", float("nan")), ("redundancy", -0.1)]
    references: ClassVar[list[str]] = ["eata"]

    def test_without_reliable_images_nothing_changes(self) -> None:
        task = tiny_task()
        before = copy(task)
        EATA(task, lr=0.3, margin=0)(pictures(16))
        assert not changed(task, before)

    def test_redundant_images_do_not_count(self) -> None:
        task = tiny_task()
        method = EATA(task, lr=0.3, redundancy=0)
        method(pictures(16))  # the first batch has nothing to be redundant to
        before = copy(task)
        method(pictures(16, seed=1))
        assert not changed(task, before)

    @pytest.mark.parametrize(("classes", "published"), [(10, 0.4), (1000, 0.05)])
    def test_default_redundancy_is_the_published_one(self, classes: int, published: float) -> None:
        task = tiny_task()
        many = prompted(torch.randn(1, classes, 16), 12.0, task.model)
        assert EATA(many).redundancy == pytest.approx(published)


class TestPLC(Contract):
    kind: ClassVar[type[Method]] = PLC
    options: ClassVar[dict[str, Any]] = {"lr": 0.01}
    bad: ClassVar[list[tuple[str, Any]]] = [("threshold", 1.1), ("threshold", "high")]
    references: ClassVar[list[str]] = ["plc"]

    def updated(self, task: Task) -> set[str]:
        return set()

    def test_nothing_confident_nothing_changes(self) -> None:
        task = tiny_task()
        z, logits = zero_shot(task, pictures(16))
        torch.testing.assert_close(PLC(task, lr=0.01, threshold=1)(z)[1], logits)

    def test_predicts_without_adapting(self) -> None:
        task = tiny_task()
        method = PLC(task, lr=0.01)
        z, logits = zero_shot(task, pictures(16))
        torch.testing.assert_close(method.predict(z)[1], logits)
        adapted = method(z)[1]
        assert torch.equal(method.predict(z)[1], adapted)


class TestSAR(TowerContract):
    kind: ClassVar[type[Method]] = SAR
    options: ClassVar[dict[str, Any]] = {"lr": 0.3}
    bad: ClassVar[list[tuple[str, Any]]] = [("margin", -0.1), ("rho", -1), ("recovery", -1), ("rho", None)]
    references: ClassVar[list[str]] = ["sar", "sar_momentum", "sar_recovery"]

    def updated(self, task: Task) -> set[str]:
        return names(task, "") - names(task, "resblocks.3") - names(task, "ln_post")

    def test_recovers_when_the_loss_has_collapsed(self) -> None:
        task = tiny_task()
        before = copy(task)
        SAR(task, lr=0.3, recovery=10)(pictures(16))
        assert not changed(task, before)

    def test_twelve_blocks_lose_the_last_three(self) -> None:
        task = tiny_task(layers=12)
        before = copy(task)
        SAR(task, lr=0.3)(pictures(16))
        kept = {number for number in range(12) if changed(task, before) & names(task, f"resblocks.{number}.")}
        assert kept == set(range(9))
        assert names(task, "ln_pre") < changed(task, before)


class TestTEA(TowerContract):
    kind: ClassVar[type[Method]] = TEA
    options: ClassVar[dict[str, Any]] = {"buffer": 10, "langevin_steps": 4}
    bad: ClassVar[list[tuple[str, Any]]] = [
        ("langevin_steps", -1),
        ("langevin_lr", -1),
        ("langevin_std", -1),
        ("buffer", 0),
        ("restart", 2),
        ("seed", 0.5),
    ]
    references: ClassVar[list[str]] = ["tea"]

    def prepare(self, method: Any) -> None:
        method.chains = dict(enumerate(numbers(method.buffer, 3, 16, 16, seed=9)))

    def test_normalisation_is_the_models_own(self) -> None:
        task = tiny_task()
        task.model.visual.preprocess_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
        samples = TEA(task, langevin_steps=0).sample(pictures(64))
        assert samples.amin().item() > -3.001
        assert samples.amax().item() < 1.001
        assert samples.amin().item() < -2.99

    def test_a_visited_chain_goes_on(self) -> None:
        method = TEA(tiny_task(), buffer=1, restart=0, langevin_steps=0)
        first = method.sample(pictures(1))
        assert torch.equal(method.sample(pictures(1)), first)
        method = TEA(tiny_task(), buffer=1, restart=1, langevin_steps=0)
        assert not torch.equal(method.sample(pictures(1)), method.sample(pictures(1)))


class TestTIPI(TowerContract):
    kind: ClassVar[type[Method]] = TIPI
    options: ClassVar[dict[str, Any]] = {"lr": 0.1, "epsilon": 0.1}
    bad: ClassVar[list[tuple[str, Any]]] = [("epsilon", -1), ("entropy_weight", -1), ("seed", -1)]
    references: ClassVar[list[str]] = ["tipi"]

    def test_parts_of_a_batch_give_the_same_step(self) -> None:
        """In double precision: the sign of a gradient near zero is a matter of rounding, which differs by machine."""
        whole, parts = (self.make(double_task(), micro_batch=size) for size in (None, 3))
        for batch in self.batches(tiny_task()):
            torch.testing.assert_close(parts(batch.double())[1], whole(batch.double())[1], atol=1e-4, rtol=0)

    @pytest.mark.parametrize("epsilon", [2 / 255, 0.1])
    def test_shift_has_its_radius(self, epsilon: float) -> None:
        task = tiny_task()
        batch = pictures(8)
        delta = TIPI(task).epsilon * numbers(*batch.shape, seed=3)
        method = TIPI(task, epsilon=epsilon)
        shift = method.shift(batch, delta, zero_shot(task, batch)[1]) - batch
        assert shift.abs().max().item() == pytest.approx(epsilon, rel=1e-4)


class TestTSD(TowerContract):
    kind: ClassVar[type[Method]] = TSD
    options: ClassVar[dict[str, Any]] = {"lr": 0.01}
    bad: ClassVar[list[tuple[str, Any]]] = [("entries", 0), ("similarity", "dot")]
    references: ClassVar[list[str]] = ["tsd", "tsd_cosine"]

    def test_only_consistent_images_count(self) -> None:
        logits = torch.eye(5)[[0, 1, 2]]
        similarity = torch.eye(5)[[0, 3, 2]]
        assert TSD(tiny_task()).agree(logits, similarity).tolist() == [True, False, True]
        assert TSD(tiny_task(), consistent=False).agree(logits, similarity).all()


class TestTent(TowerContract):
    kind: ClassVar[type[Method]] = Tent
    options: ClassVar[dict[str, Any]] = {"steps": 2}


class TestCLIPArTT(TestTent):
    kind: ClassVar[type[Method]] = CLIPArTT
    bad: ClassVar[list[tuple[str, Any]]] = [("k", 0), ("k", 6), ("k", 2.0), ("k", True)]


class TestWattP(TowerContract):
    kind: ClassVar[type[Method]] = WattP
    options: ClassVar[dict[str, Any]] = {"steps": 1, "repetitions": 2, "lr": 1e-3}
    bad: ClassVar[list[tuple[str, Any]]] = [("repetitions", 0)]


class TestWattS(TestWattP):
    kind: ClassVar[type[Method]] = WattS


# -- the originals of TENT, CLIPArTT and WATT --------------------------------------------------------------------------

VIT_PICTURES = [small.pictures(8, name).double() for name in ("first", "second")]
RESNET_PICTURES = [small.pictures(8, name, 64).double() for name in ("first", "second")]
ONLINE = {"steps": 1, "continual": True}
QUICK = {"lr": 1e-3, "steps": 1, "repetitions": 2}


@pytest.mark.parametrize(
    ("kind", "stored", "batches", "options"),
    [
        (Tent, "tent.vit", 2, {}),
        (Tent, "tent.continual", 2, {"continual": True}),
        (Tent, "tent.1e-4", 1, {"lr": 1e-4}),
        (Tent, "tent.resnet", 2, {}),
        (Tent, "tent.original-online", 2, ONLINE),  # the first authors' code, the second batch; the others: CLIPArTT's
        (CLIPArTT, "clipartt.vit", 2, {}),
        (CLIPArTT, "clipartt.continual", 2, {"continual": True}),
        (CLIPArTT, "clipartt.k-1", 1, {"k": 1}),
        (CLIPArTT, "clipartt.k-5", 1, {"k": 5}),
        (CLIPArTT, "clipartt.1e-4", 1, {"lr": 1e-4}),
        (CLIPArTT, "clipartt.resnet", 2, {}),
        (WattS, "watt.s", 1, {}),
        (WattS, "watt.s-1e-3", 2, QUICK),
        (WattP, "watt.p", 1, {"repetitions": 3}),
        (WattP, "watt.p-1e-3", 2, QUICK),
    ],
)
def test_gives_what_the_original_gives(kind: Any, stored: str, batches: int, options: dict[str, Any]) -> None:
    file, _, name = stored.partition(".")
    theirs, resnet = small.original(file), name in ("resnet", "original-online")
    method = kind(small.task(small.clip(small.RESNET if resnet else small.VIT).double()), **options)
    shown = RESNET_PICTURES if resnet else VIT_PICTURES
    found = small.logits(method, *shown[:batches])[-len(theirs[name]) :]
    assert small.largest(found, theirs[name]) < 1e-4
    if not resnet:
        assert small.largest(theirs[name][:8], theirs["plain"]) > 0.1, "the reference has adapted"


@pytest.mark.parametrize(
    ("kind", "file", "options"),
    [(Tent, "tent", {}), (CLIPArTT, "clipartt", {}), (WattP, "watt", {"repetitions": 1}), (WattS, "watt", {})],
)
def test_one_image_alone(kind: Any, file: str, options: dict[str, Any]) -> None:
    """Only TENT adapts to it: by CLIPArTT it is plain, by WATT the mean of the templates."""
    theirs, one = small.original(file), VIT_PICTURES[0][:1]
    found = small.logits(kind(small.task(small.clip(small.VIT).double()), **options), one)
    assert small.largest(found, theirs["single"]) < 1e-4
    assert (small.largest(found, theirs["plain"][:1]) < 1e-4) == (kind is not Tent)


def test_defaults_of_watt_are_the_published_ones() -> None:
    parallel, sequence = WattP(tiny_task()), WattS(tiny_task())
    assert (parallel.lr, parallel.steps, parallel.repetitions) == (1e-4, 2, 50)
    assert (sequence.lr, sequence.steps, sequence.repetitions) == (1e-4, 2, 5)
