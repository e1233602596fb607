"""Device consistency on a fake CUDA device: a tensor left on the CPU raises here as it would on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from clip_tca import alignment, mlp
from clip_tca.embeddings import unit
from clip_tca.gaussians import Gaussians, Head, SoftStatistics, least_move, matching_temperature
from clip_tca.pseudo_source import uncertainty
from clip_tca.statistics import Moments, coral_distance, ledoit_wolf_shrinkage, shrink
from clip_tca.tca import LinearTCA
from clip_tca.zero_shot import ZeroShotClassifier


@pytest.fixture
def cuda():
    with FakeTensorMode() as mode:
        yield mode


def classifier(device: str) -> ZeroShotClassifier:
    """A classifier whose texts are on ``device``; its constructor looks at values, which fake tensors don't have."""
    g = object.__new__(ZeroShotClassifier)
    g.text, g.scale = torch.randn(3, 8, device=device), 50.0
    return g


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


@pytest.mark.parametrize("solve", [alignment.gradient, alignment.coral, alignment.monge])
def test_maps(cuda, solve):
    sigma = torch.randn(8, 8, device="cuda", dtype=torch.float64)
    on_cuda(solve(sigma, sigma))


def test_mlp(cuda):
    z = torch.randn(20, 8, device="cuda")
    block = mlp.start(8, 3, 5, 0, z.device, z.dtype)
    mu, sigma = z.mean(dim=0), torch.eye(8, device="cuda")
    moved = mlp.apply(z, mlp.frame(z), block)
    # autograd looks for a real GPU even here, so the fit itself stops before its first backward pass
    _, fitted, loss, first = mlp.fit(z, mu, sigma, mlp.distances(z, mu, sigma), block, 0, 1e-3)
    on_cuda(moved, loss, first, *fitted)


def test_gaussians(cuda):
    g, z = classifier("cpu"), torch.randn(20, 8, device="cuda")
    start = g.log_probabilities(z).exp()
    moments = Moments.of(z)
    soft = SoftStatistics.empty(moments, 3)
    soft.add(z, start, start, moments.mean)
    fitted = Gaussians.fit(moments, soft, 0.3)
    scores, lengths = fitted.leave_one_out(z, start)
    means, weight, bias = fitted.discriminant(soft, lengths.mean())
    temperature = matching_temperature(scores, start.max(dim=1).values.mean())
    head = Head(weight, bias, soft.counts, means, temperature)
    on_cuda(scores, head.logits(z), temperature, *least_move(head, g))


def test_a_solved_map_is_used_on_the_device_of_the_rows(cuda):
    """The state was learned on the CPU; the rows are on the GPU."""
    tca = LinearTCA(classifier("cpu"))
    tca._cast = {}
    w = torch.eye(8, dtype=torch.float64)
    tca._solution = {"W": w, "offset": w[0], "weight": w[:, :3], "bias": w[0, :3]}
    z = torch.randn(20, 8, device="cuda")
    on_cuda(tca._move(z), tca._score(z))
