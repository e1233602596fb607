"""Forgetting: after adapting to a domain, how well is the source-like domain still recognised?

The adapted state predicts the reference domain as it is, without adapting to it; without the state every method is
zero-shot again, exactly. Base methods that could forget run in their continual form, which carries its state on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from clip_tca.embeddings import unit
from clip_tca.evaluation.base import Bases
from clip_tca.evaluation.methods import Method
from clip_tca.evaluation.protocols import order
from clip_tca.zero_shot import ZeroShotClassifier


def forgetting(
    methods: list[Method], classifier: ZeroShotClassifier, bases: Bases, reference: str
) -> list[dict[str, Any]]:
    """One row for each method and domain adapted to: accuracy on ``reference`` with the adapted state and without."""
    domains = bases.embedded.data.domains
    if reference not in domains:
        raise ValueError(f"forgetting: {reference!r} is not a domain; there are {', '.join(domains)}")
    device = classifier.text.device
    z, truth = (part.to(device) for part in domains[reference])
    without = int((classifier.predict(z) == truth).sum())
    rows = []
    for domain, (embeddings, labels) in domains.items():
        if domain == reference:
            continue
        seen = order(len(labels), "full", bases.batch, 0)
        for method in methods:
            if method.name == "zero-shot":
                continue
            kept = _predicted(method, classifier, bases, embeddings[seen].to(device), (domain, seen), (reference, z))
            right = int((kept == truth).sum())
            rows.append(
                {
                    "method": method.name,
                    "adapted_to": domain,
                    "domain": reference,
                    "images": len(truth),
                    "correct_with_state": right,
                    "accuracy_with_state": 100 * right / len(truth),
                    "correct_without_state": without,
                    "accuracy_without_state": 100 * without / len(truth),
                }
            )
    return rows


def _predicted(
    method: Method,
    classifier: ZeroShotClassifier,
    bases: Bases,
    z: Tensor,
    adapted_to: tuple[str, Tensor],
    reference: tuple[str, Tensor],
) -> Tensor:
    name, there = reference
    adapter, logits, scores = method.adapter(classifier), None, None
    if adapter is not None and adapter.uses_labels:
        raise ValueError(f"forgetting: {method.name} is an oracle; leave it out")
    if method.base is not None:
        everything = torch.arange(len(there))
        before, after = bases.carry(method.base, method.base_options, adapted_to, (name, everything))
        z, logits, there, scores = before.z, before.logits, after.z, after.logits
        if adapter is None:
            return scores.argmax(dim=1)
    if adapter is None:
        return classifier.predict(there)
    adapted = adapter.fit(z, logits=logits).logits(there)
    return (adapted if scores is None else scores + adapted - classifier.logits(unit(there))).argmax(dim=1)
