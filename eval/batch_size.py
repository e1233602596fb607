"""Streams at batch sizes 1 to 1024: the paper's batch-size experiment on stored embeddings.

    python eval/batch_size.py EMBEDDINGS.safetensors [--output eval/batch_size.md]

Each batch is predicted after the adapter has seen it and no later ones. Images come in one seeded random order. In the
column ``sorted`` they come class by class, in batches of 64.
"""

from __future__ import annotations

import torch
from page import main

from clip_tca import ConditionalTCA, LinearTCA, ZeroShotClassifier
from clip_tca.data.embeddings import load_embeddings

SIZES = (1, 4, 16, 64, 256, 1024)


def report(path: str) -> str:
    """The whole page."""
    data = load_embeddings(path)
    g = ZeroShotClassifier(data.text, data.scale)
    lines = [
        "# Streams: accuracy by batch size",
        "",
        "Printed by `python eval/batch_size.py pacs.safetensors --output eval/batch_size.md`. Accuracy (%) of the",
        "predictions during the stream, with images in random order. `sorted`: class by class, in batches of 64.",
        "`fit`: one fit on the whole domain. Solved at its end (`solve()`), a stream has the map of `fit`. It differs",
        "only because images are predicted during the stream, when fewer have been seen.",
        "",
        "| method | domain | zero-shot | " + " | ".join(f"batch {size}" for size in SIZES) + " | sorted | fit |",
        "|---" * (len(SIZES) + 5) + "|",
    ]
    for adapter in (LinearTCA, ConditionalTCA):
        for name, (embeddings, labels) in data.domains.items():
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
            z, y = embeddings[order], labels[order]
            predictions = [g.predict(z)]
            for size in SIZES:
                tca = adapter(g)
                predictions.append(torch.cat([tca.partial_fit(batch).predict(batch) for batch in z.split(size)]))
            by_class = y.argsort(stable=True)
            tca, ordered = adapter(g), torch.empty_like(y)
            ordered[by_class] = torch.cat([tca.partial_fit(b).predict(b) for b in z[by_class].split(64)])
            predictions += [ordered, adapter(g).fit(z).predict(z)]
            cells = [f"{100 * (p == y).to(torch.float64).mean().item():.2f}" for p in predictions]
            lines.append(f"| {adapter.__name__} | {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main(__doc__, report)
