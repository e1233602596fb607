"""Device consistency without a GPU: tensors that compute on the CPU, say they are elsewhere, and do not mix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from clip_tca import MLPTCA, ConditionalTCA, LinearTCA, ZeroShotClassifier
from clip_tca.core.tensors import unit

ELSEWHERE = torch.device("meta")
"""A device that every torch has; its own kernels are never called here."""


class Elsewhere(torch.Tensor):
    """A tensor whose numbers are in ``values`` on the CPU."""

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> Elsewhere:
        return torch.Tensor._make_wrapper_subclass(
            cls, values.shape, dtype=values.dtype, device=ELSEWHERE, strides=values.stride()
        )

    def __init__(self, values: torch.Tensor) -> None:
        self.values_ = values

    def new_tensor(self, data: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        return Elsewhere(torch.tensor(data, dtype=dtype or self.dtype))

    @classmethod
    def __torch_dispatch__(cls, operation, types, arguments=(), options=None):
        return compute(operation, arguments, options or {})


class Devices(TorchDispatchMode):
    """Lets ``device=ELSEWHERE`` make such tensors."""

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        return compute(operation, arguments, options or {})


def compute(operation: Any, arguments: Any, options: dict[str, Any]) -> Any:
    """The operation on the CPU, its result on the device of its arguments; RuntimeError if they are on two."""
    tensors: list[torch.Tensor] = []
    tree_map(lambda value: tensors.append(value) if isinstance(value, torch.Tensor) else None, (arguments, options))
    moves = operation.name() in ("aten::_to_copy", "aten::copy_")
    devices = {tensor.device for tensor in tensors if tensor.ndim}  # a number on the CPU may go with any
    if len(devices) > 1 and not moves:
        raise RuntimeError(f"{operation.name()}: tensors on two devices")
    target = torch.device(options.pop("device", None) or (tensors[0].device if tensors else "cpu"))
    target = ELSEWHERE if ELSEWHERE in devices and not moves else target
    plain = tree_map(lambda value: getattr(value, "values_", value), (arguments, options))
    result = operation(*plain[0], **plain[1])
    if torch.Tag.inplace_view in operation.tags and target == ELSEWHERE:
        with no_dispatch():  # such as squeeze_: the shape that the tensor shows changes too
            return operation(*arguments, **options)
    if operation.name() == "aten::copy_":
        return arguments[0]
    return tree_map(lambda r: Elsewhere(r) if isinstance(r, torch.Tensor) and target == ELSEWHERE else r, result)


@pytest.fixture(autouse=True)
def devices():
    with Devices():
        yield


def elsewhere(*tensors: torch.Tensor) -> None:
    assert tensors
    assert all(tensor.device == ELSEWHERE for tensor in tensors)


def test_a_tensor_on_the_wrong_device_is_noticed():
    with pytest.raises(RuntimeError, match="two devices"):
        torch.randn(3, 8, device=ELSEWHERE) @ torch.randn(8, 3)


@pytest.mark.parametrize("text_device", ["cpu", ELSEWHERE])
@pytest.mark.parametrize("kind", [LinearTCA, MLPTCA, ConditionalTCA])
def test_an_adapter_works_where_the_embeddings_are(kind, text_device, shifted):
    text = shifted.g.text.to(text_device)
    z = shifted.z.to(ELSEWHERE)
    adapter = kind(ZeroShotClassifier(text, shifted.g.scale)).fit(z)
    adapter.partial_fit(z[:3]).solve()
    elsewhere(adapter.transform(z), adapter.predict_proba(z))
    if adapter.linear:
        elsewhere(adapter.W_, adapter.folded().logits(unit(z)))
    expected = kind(ZeroShotClassifier(shifted.g.text, shifted.g.scale)).fit(shifted.z)
    expected.partial_fit(shifted.z[:3]).solve()
    assert torch.equal(adapter.predict(z).cpu(), expected.predict(shifted.z))


@pytest.mark.parametrize("kind", [LinearTCA, MLPTCA, ConditionalTCA])
def test_a_map_learned_on_the_cpu_serves_rows_elsewhere(kind, shifted):
    adapter = kind(shifted.g).fit(shifted.z)
    z = shifted.z.to(ELSEWHERE, torch.float16)
    moved, logits, labels = adapter.transform(z), adapter.logits(z), adapter.predict(z)
    elsewhere(moved, logits, labels, *adapter.adapt(z))
    assert moved.dtype == torch.float16
