"""Forgetting: after adapting to a domain, how well is the source-like domain still recognised?

The adapted state predicts the reference domain as it is, without adapting to it; without the state every method is
zero-shot again, exactly. Base methods that could forget run in their continual form, which carries its state on.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from clip_tca.classifier import LinearClassifier
from clip_tca.core.tensors import unit
from clip_tca.datasets.registry import domain_named
from clip_tca.evaluation.base_runs import Bases
from clip_tca.evaluation.method_choice import Choice
from clip_tca.evaluation.protocols import order


def check_forgetting(methods: list[Choice], domains: list[str], reference: str) -> str:
    """The domain that ``reference`` names; ValueError, before any work, if nothing can be measured on it."""
    found = domain_named(reference, domains, "forgetting")
    if len(domains) == 1:
        raise ValueError(f"forgetting: {found!r} is the only domain, and there is none to adapt to before it")
    if oracle := next((method.name for method in methods if method.uses_labels), None):
        raise ValueError(f"forgetting: {oracle} is an oracle; leave it out")
    if all(method.name == "zero-shot" for method in methods):
        raise ValueError("forgetting: zero-shot adapts to nothing, so it forgets nothing; add another method")
    return found


def measure_forgetting(
    methods: list[Choice], classifier: LinearClassifier, bases: Bases, reference: str
) -> list[dict[str, Any]]:
    """One row for each method and domain adapted to: accuracy on ``reference`` with the adapted state and without."""
    domains = bases.embedded.data.domains
    device = classifier.device
    shown = order(len(domains[reference][1]), "full", bases.batch, 0)  # BatchNorm sees batches: not class by class
    z, truth = (part[shown].to(device) for part in domains[reference])
    without = int((classifier.predict(z) == truth).sum())
    rows = []
    for domain, (embeddings, labels) in domains.items():
        if domain == reference:
            continue
        seen = order(len(labels), "full", bases.batch, 0)
        for method in methods:
            if method.name == "zero-shot":
                continue
            given = embeddings[seen].to(device)
            kept = _predicted(method, classifier, bases, (domain, given, seen), (reference, z, shown))
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
    method: Choice,
    classifier: LinearClassifier,
    bases: Bases,
    adapted_to: tuple[str, Tensor, Tensor],
    reference: tuple[str, Tensor, Tensor],
) -> Tensor:
    """Classes of the reference domain; each domain comes as its name, its embeddings and their order."""
    (domain, z, seen), (name, there, shown) = adapted_to, reference
    adapter, logits, scores = method.adapter(classifier), None, None
    if method.base is not None:
        before, after = bases.carry(method.base, method.base_options, (domain, seen), (name, shown))
        z, logits, there, scores = before.z, before.logits, after.z, after.logits
        if adapter is None:
            return scores.argmax(dim=1)
    if adapter is None:
        return classifier.predict(there)
    adapted = adapter.fit(z, logits=logits).logits(there)
    return (adapted if scores is None else scores + adapted - classifier.logits(unit(there))).argmax(dim=1)
