"""Print why adaptation gains or loses on the demo, style by style. True labels are used here, to judge, never to adapt.

    python eval/demo/why.py

``predicted`` is how many of the seven classes zero-shot predicts at all; ``certain`` how many of the embeddings that
LinearTCA takes for its pseudo-source are predicted rightly; ``class means`` the accuracy of the nearest true class mean
(each picture left out of its own), that is, how much the embeddings still tell of the class, whatever the prompts say.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from clip_tca import ConditionalTCA, LinearTCA, ZeroShotClassifier
from clip_tca.adapters.linear import certain_rows, uncertainty
from clip_tca.evaluation.inputs import Inputs


def class_means(z: Tensor, y: Tensor) -> float:
    """Accuracy of the nearest class mean, with each row left out of its own."""
    hot = functional.one_hot(y).to(z.dtype)
    sums, counts = hot.T @ z, hot.sum(dim=0)
    distance = torch.cdist(z, sums / counts[:, None])
    own = (sums[y] - z) / (counts[y] - 1)[:, None]
    distance[torch.arange(len(y)), y] = (z - own).norm(dim=1)
    return 100 * float((distance.argmin(dim=1) == y).double().mean())


def main() -> None:
    """Print one line for each style."""
    data = Inputs("demo").embed().data
    g = ZeroShotClassifier(data.text, data.scale)
    print("| style | zero-shot | linear-tca | conditional-tca | predicted | certain | class means |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for style, (rows, y) in data.domains.items():
        z = functional.normalize(rows, dim=1)
        linear = LinearTCA(g).fit(z)
        p = g.predict_proba(z.double())
        found = certain_rows(uncertainty(p), p.argmax(dim=1), linear.pseudo_source_counts_)
        certain = 100 * float((g.predict(z[found]) == y[found]).double().mean())
        predictions = [g.predict(z), linear.predict(z), ConditionalTCA(g).fit(z).predict(z)]
        shares = " | ".join(f"{100 * float((p == y).double().mean()):.1f}" for p in predictions)
        predicted = len(predictions[0].unique())
        print(f"| {style} | {shares} | {predicted} | {certain:.0f} % | {class_means(z, y):.1f} |")


if __name__ == "__main__":
    main()
