"""``clip-tca methods``: every method with a line, what it updates, and whether it needs back-propagation."""

from __future__ import annotations

import argparse

ADAPTERS = {
    "zero-shot": "similarity to the prompts; nothing adapts",
    "linear-tca": "maps all embeddings onto mean and covariance of the most certain ones, with our defaults",
    "linear-tca:paper": "the same as the paper prints it: the k most certain overall, gradient steps",
    "linear-tca:reference": "the same as the public code does it: an oracle, which counts true labels",
    "mlp2-tca": "linear-tca with a residual MLP of 2 layers behind it",
    "mlp3-tca": "linear-tca with a residual MLP of 3 layers behind it",
    "conditional-tca": "aligns class by class: soft class means, one shared covariance",
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    command = commands.add_parser("methods", help="the methods that eval knows, with a line each")
    command.set_defaults(run=run)


def run(_options: argparse.Namespace) -> int:
    """Print the list."""
    from clip_tca.methods import NAMES, base_method

    print("adapters of embeddings (no back-propagation through the model, any data set):")
    for name, line in ADAPTERS.items():
        print(f"  {name:22}{line}")
    print("\nbase methods; NAME+tca puts linear-tca on top:")
    for name in NAMES:
        method = base_method(name)
        gradient = "back-propagation" if method.backpropagation else "no back-propagation"
        print(f"  {name:22}{method.summary}")
        print(f"  {'':22}sees {method.sees}; updates {method.updates}; {gradient}")
        if method.changed:
            print(f"  {'':22}here: {method.changed}")
    return 0
