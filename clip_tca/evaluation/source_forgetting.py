"""Forgetting: accuracy on the source-like domain after adapting to another domain.

The adapted state predicts the source-like domain without adapting to it; without the state every method is zero-shot
again, exactly. Base methods that could forget run in their continual form, which keeps its state.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from clip_tca.classifier import LinearClassifier
from clip_tca.core.progress import tracked
from clip_tca.datasets.registry import domain_named
from clip_tca.evaluation.base_runs import BaseRuns
from clip_tca.evaluation.method_spec import MethodSpec
from clip_tca.evaluation.protocols import class_scores, order
from clip_tca.methods.registry import ZERO_SHOT
from clip_tca.results.schema import ForgettingRow


def check_forgetting(methods: list[MethodSpec], domains: list[str], reference: str) -> str:
    """The domain that ``reference`` names; ValueError, before any work, if nothing can be measured on it."""
    name = domain_named(reference, domains, "forgetting")
    if len(domains) == 1:
        raise ValueError(f"forgetting: {name!r} is the only domain, and there is none to adapt to before it")
    if oracle := next((method.name for method in methods if method.uses_labels), None):
        raise ValueError(f"forgetting: {oracle} is an oracle; leave it out")
    if all(method.name == ZERO_SHOT for method in methods):
        raise ValueError("forgetting: zero-shot adapts to nothing, so it forgets nothing; add another method")
    return name


def measure_forgetting(
    methods: list[MethodSpec], classifier: LinearClassifier, runs: BaseRuns, reference: str
) -> list[ForgettingRow]:
    """One row for each method and domain adapted to: accuracy on ``reference`` with the adapted state and without."""
    domains = runs.embedded.data.domains
    device = classifier.device
    shuffled = order(len(domains[reference][1]), "full", runs.batch, 0)  # BatchNorm sees batches: not class by class
    z, labels = (part[shuffled].to(device) for part in domains[reference])
    without = int((classifier.predict(z) == labels).sum())
    rows: list[ForgettingRow] = []
    others = [(domain, pair) for domain, pair in domains.items() if domain != reference]
    for domain, (embeddings, _) in tracked(others, len(others), "forgetting", "domain", runs.progress):
        seen = order(len(embeddings), "full", runs.batch, 0)
        for method in methods:
            if method.name == ZERO_SHOT:
                continue
            adapter = method.adapter(classifier)
            outputs: Sequence[tuple[Tensor, Tensor | None]] = [(embeddings[seen].to(device), None), (z, None)]
            if method.base is not None:
                outputs = runs.carry(method.base, method.base_options, (domain, seen), (reference, shuffled))
            (adapted_z, logits), reference_output = outputs
            if adapter is not None:
                adapter.fit(adapted_z, logits=logits)
            predicted = class_scores(classifier, *reference_output, adapter).argmax(dim=1)
            correct = int((predicted == labels).sum())
            rows.append(
                {
                    "method": method.name,
                    "adapted_to": domain,
                    "domain": reference,
                    "images": len(labels),
                    "correct_with_state": correct,
                    "accuracy_with_state": 100 * correct / len(labels),
                    "correct_without_state": without,
                    "accuracy_without_state": 100 * without / len(labels),
                }
            )
    return rows
