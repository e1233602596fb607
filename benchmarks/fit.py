"""Fitting LinearTCA: against plain autograd, and against encoding the same images with ViT-B/16. One thread.

The plain run is what the public code does: logits, certainty, the most certain rows, two covariances, and 20 steps of
``torch.optim.Adam`` through autograd, all in float32. In float32 many rows are equally certain, so it is then given our
choice: only for the same pseudo-source is W the same. *Least* is the price of the closed form's products alone, in
float32: half of the covariance, and two and a half products for each step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.measure import Row, embeddings, seconds
from clip_tca import LinearTCA, ZeroShotClassifier
from clip_tca.adapters.symmetric import symmetric_product

K = 140


def plain(z: Tensor, g: ZeroShotClassifier, same: Tensor) -> Tensor:
    """W of the paper's method (the K most certain overall) by autograd, for the pseudo-source ``same``."""
    z = torch.nn.functional.normalize(z, dim=1)
    p = (g.scale * z @ g.text.T).softmax(dim=1)
    label = torch.nn.functional.one_hot(p.argmax(dim=1), g.n_classes)
    _ = z[(label - p).square().sum(dim=1).topk(K, largest=False).indices]
    sigma_t, sigma_s = torch.cov(z.T), torch.cov(same.T)
    w = torch.eye(z.shape[1], requires_grad=True)
    optimizer = torch.optim.Adam([w], lr=1e-3)
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.norm(w.T @ sigma_t @ w - sigma_s, p="fro") ** 2
        loss.backward()
        optimizer.step()
    return w.detach()


def least(z: Tensor) -> None:
    """The products that exact steps need, and nothing else."""
    symmetric_product(z, z)
    w = torch.eye(z.shape[1])
    for _ in range(20):
        moved = w @ w
        moved @ symmetric_product(w, moved)


def images_per_second(images: int) -> float:
    """Rate of ViT-B/16 (random weights: speed does not depend on them) on ready tensors."""
    import open_clip

    model = open_clip.create_model("ViT-B-16-quickgelu", pretrained=None).eval()
    batch = torch.randn(images, 3, 224, 224)
    with torch.inference_mode():
        model.encode_image(batch[:2])
        return images / seconds(lambda: model.encode_image(batch))


def rows(quick: bool) -> list[Row]:
    """For each d and n: plain over ours, and the default fit over encoding."""
    torch.set_num_threads(1)
    rate = images_per_second(8 if quick else 32)
    table: list[Row] = []
    for dim in (512, 768):
        for images in (2000,) if quick else (2000, 20_000, 100_000):
            z, g = embeddings(images, dim)
            ours, default = LinearTCA.paper(g, k=K), LinearTCA(g)
            same = ours.fit(z).pseudo_source_
            autograd, closed_form = (
                min(times)
                for times in zip(
                    *[(seconds(lambda: plain(z, g, same)), seconds(lambda: ours.fit(z))) for _ in range(3)],  # noqa: B023
                    strict=True,
                )
            )
            gap = float((plain(z, g, same) - ours.W_).abs().max())
            table.append(
                Row(
                    f"gradient fit, d = {dim}, n = {images:,}: times faster than plain autograd",
                    autograd / closed_form,
                    ">= 5",
                    {
                        "plain": f"{autograd:.3f} s",
                        "ours": f"{closed_form:.3f} s",
                        "least": f"{seconds(lambda: least(z), 3):.3f} s",  # noqa: B023
                        "W differs by": f"{gap:.0e}",
                    },
                    gap <= 1e-4,
                )
            )
            took = seconds(lambda: default.fit(z), 2)  # noqa: B023
            table.append(
                Row(
                    f"default fit, d = {dim}, n = {images:,}: part of the time to encode the images",
                    took * rate / images,
                    "<= 0.02",
                    {"fit": f"{took:.3f} s", "ViT-B/16, extrapolated": f"{images / rate:,.0f} s"},
                )
            )
    return table
