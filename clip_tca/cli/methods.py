"""``clip-tca methods``: a summary of every method, what it updates, and whether it needs back-propagation."""

from __future__ import annotations

import argparse

NATURES = {
    "transductive": "the whole set at once (transductive)",
    "online": "batch after batch (online)",
    "batch": "each batch alone (batch)",
}
"""How a method sees the test set, in words."""


def add(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    command.set_defaults(run=run)


def run(_options: argparse.Namespace) -> int:
    """Print the list."""
    from clip_tca.adapters.registry import ADAPTERS
    from clip_tca.methods.registry import BASES, ZERO_SHOT, base_method

    print("adapters of embeddings (no back-propagation through the model, any data set):")
    summaries = {name: adapter.summary for name, adapter in ADAPTERS.items()}
    for name, line in {ZERO_SHOT: "similarity to the prompts; nothing adapts", **summaries}.items():
        print(f"  {name:22}{line}")
    print("\nbase methods; NAME+tca puts linear-tca on top:")
    for name in BASES:
        method = base_method(name)
        gradient = "back-propagation" if method.backpropagation else "no back-propagation"
        print(f"  {name:22}{method.summary}")
        print(f"  {'':22}sees {method.sees}, {NATURES[method.nature]}; updates {method.updates}; {gradient}")
        if method.changed:
            print(f"  {'':22}here: {method.changed}")
        if method.tuned_on_test:
            print(f"  {'':22}authors tuned on test data: {method.tuned_on_test}")
    return 0
