"""Device consistency on a fake CUDA device: a tensor left on the CPU raises here as it would on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from clip_tca import MLPTCA, ConditionalTCA, LinearTCA, ZeroShotClassifier
from clip_tca.adapters import residual_mlp, solvers
from clip_tca.adapters.assignment import local_covariance
from clip_tca.adapters.class_priors import agreed_prior, imbalance
from clip_tca.adapters.gaussian_fit import least_move, matching_temperature
from clip_tca.adapters.gaussians import Axes, Gaussians, SoftStatistics
from clip_tca.adapters.overconfidence import nearest
from clip_tca.adapters.pseudo_source import uncertainty
from clip_tca.adapters.statistics import Moments, StreamMoments, coral_distance, ledoit_wolf_shrinkage, shrink
from clip_tca.classifier import LinearClassifier
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
    p = g.log_probabilities(z).exp()
    on_cuda(z, p, uncertainty(p, "distance"), uncertainty(p, "entropy"))


def test_statistics(cuda):
    moments = Moments.of(torch.randn(20, 8, device="cuda"))
    moments.update(torch.randn(1, 8, device="cuda"))
    moments = moments.merge(Moments.of(torch.randn(5, 8, device="cuda")))
    amount = ledoit_wolf_shrinkage(moments)
    sigma = shrink(moments.covariance(), amount)
    on_cuda(amount, sigma, coral_distance(sigma, sigma), moments.mean, moments.cubes, moments.quartics)


@pytest.mark.parametrize("solve", [solvers.gradient, *solvers.EXACT.values()])
def test_maps(cuda, solve):
    sigma = torch.randn(8, 8, device="cuda", dtype=torch.float64)
    on_cuda(solve(sigma, sigma))


def test_mlp(cuda):
    z = torch.randn(20, 8, device="cuda")
    block = residual_mlp.start(8, 3, 5, 0, z.device, z.dtype)
    target, view = (z[:6], torch.full_like(z[:6, 0], 1 / 6)), residual_mlp.view(z[:3])
    moved = residual_mlp.apply(z, residual_mlp.frame(z), block)
    # autograd looks for a real GPU even here, so the fit itself stops before its first backward pass
    _, fitted, loss, first = residual_mlp.fit(z, target, view, block, 0, 1e-3)
    on_cuda(moved, loss, first, *fitted)


def test_gaussians(cuda):
    g, z = classifier("cpu"), torch.randn(20, 8, device="cuda")
    start = g.log_probabilities(z).exp()
    axes, y = Axes.of(z)
    soft = SoftStatistics.empty(axes, 3)
    soft.add(y, start, start)
    prior = agreed_prior(soft.support, imbalance(soft.support))
    trust, shape = torch.ones_like(prior[0]), local_covariance(y, nearest(y, 3))
    fitted = Gaussians.fit(axes, soft, 0.3, prior, trust, shape)
    density = fitted.density(y.dtype)
    lengths = density.lengths(y)
    scores = density.scores(y, density.half * lengths) * density.own_share(start.to(y.dtype))
    means, weight, bias = fitted.discriminant(soft, fitted.mean_length(axes))
    temperature = matching_temperature(scores, start.max(dim=1).values.mean())
    adapted = LinearClassifier(weight, bias)
    on_cuda(scores, means, adapted.exact_logits(z), temperature, *least_move(adapted, g))


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
    tca.partial_fit(z[:3])
    on_cuda(tca.transform(z), tca.probabilities(z), tca.predict(z), tca.W_, tca.counts_, tca.means_)


def test_merging_and_folding(cuda):
    """ConditionalTCA for the same reason; what LinearTCA adds to a merge are its moments and its bank."""
    z = torch.randn(500, 8, device="cuda")
    g = classifier("cuda")
    parts = [ConditionalTCA(g).fit(part) for part in z.split(250)]
    merged = parts[0].merge(parts[1])
    head = merged.folded()
    on_cuda(merged.logits(z), head.weight, head.bias, head.logits(z), head.linear().weight)
    moments = StreamMoments(8, "cuda")
    for number in (1, 0, 2):
        moments.update(z)
        moments.end_segment(number)
    on_cuda(moments.total().scatter)
