"""Device consistency on a fake CUDA device: a tensor left on the CPU raises here as it would on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from clip_tca import MLPTCA, ConditionalTCA, LinearTCA, ZeroShotClassifier
from clip_tca.adapters import mlp
from clip_tca.adapters.linear import CLOSED_FORM, gradient, uncertainty
from clip_tca.adapters.statistics import EvenSample, RunningMoments, coral_distance, ledoit_wolf, shrink
from clip_tca.core.tensors import unit


@pytest.fixture
def cuda():
    with FakeTensorMode() as mode:
        yield mode


def classifier(device: str) -> ZeroShotClassifier:
    return ZeroShotClassifier(torch.randn(3, 8, device=device), scale=50.0)


def on_cuda(*tensors: torch.Tensor) -> None:
    assert tensors
    assert all(t.device.type == "cuda" for t in tensors)


def test_the_fake_device_does_catch_a_tensor_on_the_wrong_device(cuda):
    with pytest.raises(RuntimeError, match="device"):
        torch.randn(3, 8, device="cuda") @ torch.randn(8, 3)


@pytest.mark.parametrize("text_device", ["cpu", "cuda"])
def test_zero_shot(cuda, text_device):
    g = classifier(text_device)
    z = unit(torch.randn(20, 8, device="cuda", dtype=torch.float16))
    p = g.predict_proba(z)
    on_cuda(z, p, uncertainty(p, "distance"), uncertainty(p, "entropy"))


def test_statistics(cuda):
    running, sample = RunningMoments(), EvenSample(8)
    for n in (20, 1, 5000):
        rows = torch.randn(n, 8, device="cuda")
        running.add(rows)
        sample.add(rows)
    m, amount = running.total(), ledoit_wolf(running.total())
    sigma = shrink(m.covariance, amount)
    on_cuda(m.mean, m.fourth, amount, sigma, coral_distance(sigma, sigma), sample.rows())


@pytest.mark.parametrize("solve", [gradient, *CLOSED_FORM.values()])
def test_maps(cuda, solve):
    sigma = torch.randn(8, 8, device="cuda", dtype=torch.float64)
    on_cuda(solve(sigma, sigma))


def test_mlp(cuda):
    z = torch.randn(20, 8, device="cuda")
    parameters, view = mlp.initial_parameters(8, 3, 5, 0, z), mlp.seen_by(z[:3])
    # autograd looks for a real GPU even here, so the fit itself stops before its first backward pass
    fitted = mlp.fit_residual(z, (z[:6], torch.full_like(z[:6, 0], 1 / 6)), view, parameters, 0, 1e-3)
    on_cuda(mlp.residual(z, fitted["centre"], fitted["scale"], parameters), *fitted.values())


@pytest.mark.parametrize("adapter", [LinearTCA, MLPTCA, ConditionalTCA])
def test_a_map_learned_on_the_cpu_serves_rows_on_the_gpu(adapter, shifted):
    tca = adapter(shifted.g).fit(shifted.z)
    with FakeTensorMode(allow_non_fake_inputs=True):
        z = torch.randn(20, 24, device="cuda", dtype=torch.float16)
        moved, logits, labels = tca.transform(z), tca.logits(z), tca.predict(z)
        on_cuda(moved, logits, labels, *tca.adapt(z))
    assert moved.dtype == torch.float16


@pytest.mark.parametrize("text_device", ["cpu", "cuda"])
def test_conditional_from_end_to_end(cuda, text_device):
    """No step of it looks at a value, so all of it runs on the fake device; LinearTCA's selection can't."""
    z = torch.randn(5000, 8, device="cuda", dtype=torch.bfloat16)
    tca = ConditionalTCA(classifier(text_device)).fit(z)
    tca.partial_fit(z[:3]).solve()
    on_cuda(tca.transform(z), tca.predict_proba(z), tca.predict(z), tca.W_, tca.counts_, tca.means_)
    head = tca.folded()
    on_cuda(head.weight, head.bias, head.logits(z.float()))
