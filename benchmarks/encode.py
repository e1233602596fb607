"""Images per second on a CPU: ours against bare open_clip, as ratios measured in turns in one run.

    python -m benchmarks --only encode

Bare: open_clip's image tower in eager float32 on ready tensors, all threads on one batch, the best of four sizes; no
decoding. Ours: ``Embedder``, as ``embed`` and ``label`` call it, from JPEG files of 400 × 300 pixels to the store. *A
DataLoader loop* is the usual one, as CLIP_benchmark has it: four processes decode, batches of 64 are encoded. Weights
are random: speed does not depend on them. Every turn measures each once, by the clock, and the best of each counts:
other work on the machine comes and goes. Core-hours are processor time. *Bound* is what float32 could reach at most:
the model's floating-point operations at the rate of a large product on all threads, by PyTorch or by oneDNN.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import open_clip
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure import PRICE, Row, pictures, wall
from clip_tca.data.pictures import ImageSet
from clip_tca.encoding.decoding import Reader
from clip_tca.encoding.embedder import Embedder
from clip_tca.encoding.onednn import linear
from clip_tca.encoding.open_clip import OpenClipEncoder
from clip_tca.encoding.store import Store

BATCHES = (4, 8, 16, 32)
"""Images at once of the bare model."""


def usual_loop(data: ImageSet, encoder: OpenClipEncoder) -> None:
    """Encode as evaluation programs of CLIP do."""
    paths, transform = [picture.source for picture in data.domains["own"].pictures], encoder.transform

    def batch(part: Sequence[Path]) -> torch.Tensor:
        return torch.stack([transform(Image.open(path)) for path in part])

    for images in DataLoader(paths, batch_size=64, num_workers=4, collate_fn=batch):
        encoder.model.encode_image(images)


def measure(model: str, images: int, turns: int) -> list[Row]:
    """Rates of ours over that of the bare model, in float32 and in bfloat16, from a full and to an empty store."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        save_file(open_clip.create_model(model).state_dict(), root / "weights.safetensors")
        exact, half = (OpenClipEncoder(model, str(root / "weights.safetensors"), "cpu", p) for p in ("fp32", "bf16"))
        data = pictures(root / "own", images)
        ready, _ = Reader(data.domains["own"], exact.transform)[list(range(images))]
        tower, large = exact.model.visual, torch.ones(2048, 2048)
        torch.backends.mha.set_fastpath_enabled(False)  # attention as one operation would count as nothing
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            tower(ready[:1])
        torch.backends.mha.set_fastpath_enabled(True)

        stores = iter(Store(root / f"store{i}") for i in range(99))
        full = next(stores)
        Embedder(exact, full).pictures(data)
        work: dict[str, Callable[[], object]] = {
            **{f"bare {n}": lambda n=n: [tower(part) for part in ready.split(n)] for n in BATCHES},
            "ours": lambda: Embedder(exact, next(stores)).pictures(data),
            "bf16": lambda: Embedder(half, next(stores)).pictures(data),
            "decoding": lambda: Reader(data.domains["own"], exact.transform)[list(range(images))],
            "stored": lambda: Embedder(exact, full).pictures(data),
            "loop": lambda: usual_loop(data, exact),
            "product": lambda: large @ large,
            "product by oneDNN": lambda: linear(large, large),
        }
        best, used = dict.fromkeys(work, math.inf), dict.fromkeys(work, math.inf)
        with torch.inference_mode():
            _ = half._image_model
            for _turn in range(turns):
                for name, run in work.items():
                    began = time.process_time()
                    best[name] = min(best[name], wall(run))
                    used[name] = min(used[name], time.process_time() - began)
    bare = min(best[f"bare {n}"] for n in BATCHES)
    rates = {name: 2 * 2048**3 / best[name] for name in best if name.startswith("product")}
    rate = max(rates.values())
    bound = bare / (images * counter.get_total_flops() / rate)
    sides = {
        "bare": f"{images / bare:.2f} images/s",
        "decoding alone, one core": f"{images / best['decoding']:.0f}",
        "a DataLoader loop": f"{images / best['loop']:.2f}",
        **{f"float32 {name}": f"{each / 1e9:.0f} GFLOP/s" for name, each in rates.items()},
        "bound": f"{bound:.2f} times bare",
    }
    core_hours = {name: 1e6 * used[name] / images / 3600 for name in ("ours", "bf16")}
    return [
        Row(
            f"{model}, embed: rate over bare open_clip",
            bare / best["ours"],
            ">= 1.3",
            {"ours": f"{images / best['ours']:.2f} images/s", **sides},
        ),
        Row(
            f"{model}, embed --precision bf16: rate over bare open_clip",
            bare / best["bf16"],
            ">= 1.3",
            {"ours": f"{images / best['bf16']:.2f} images/s", **sides},
        ),
        Row(
            f"{model}, embed, all in the store: milliseconds for each image",
            1000 * best["stored"] / images,
            "",
            {"images": str(images)},
        ),
        Row(
            f"scale: {model}: core-hours for a million pictures",
            core_hours["ours"],
            "",
            {
                "with bf16": f"{core_hours['bf16']:.0f}",
                "a billion": f"{core_hours['ours']:,.0f} thousand, with bf16 {core_hours['bf16']:,.0f} thousand",
                f"a million, at {PRICE} euros a core-hour (assumed)": (
                    f"{PRICE * core_hours['ours']:.2f} euros, with bf16 {PRICE * core_hours['bf16']:.2f}"
                ),
            },
        ),
    ]


def rows(quick: bool) -> list[Row]:
    """The default model, and one that is four times faster, so that decoding weighs more."""
    if quick:
        return measure("ViT-B-32-quickgelu", 32, 2) + measure("ViT-B-16-quickgelu", 32, 1)
    return measure("ViT-B-16-quickgelu", 64, 3) + measure("ViT-B-32-quickgelu", 128, 3)
