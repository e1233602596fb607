"""``clip-tca export``: a saved state as a linear classifier for other runtimes."""

from __future__ import annotations

import argparse
from pathlib import Path

from clip_tca.cli import options as shared
from clip_tca.core.remote import locate


def add(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    command.description = (
        "Fold a saved LinearTCA or ConditionalTCA into a linear classifier: .onnx (needs the onnx extra), "
        "or .safetensors with weight and bias for torch.nn.Linear."
    )
    command.add_argument("state", metavar="STATE", help="what --save-state or an adapter's save wrote")
    command.add_argument("--output", "-o", required=True, metavar="FILE", help="ends with .onnx or .safetensors")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the file, and say what is in it."""
    shared.check_output(options.output)
    shared.check_inputs(options)
    from clip_tca.adapters.export import export
    from clip_tca.adapters.state import load

    head = load(locate(options.state)).folded()
    export(head, Path(options.output))
    classes, dim = head.weight.shape
    unit = "of any length, which the model scales" if options.output.endswith(".onnx") else "of unit length"
    length = unit if head.normalize else "as they come"
    print(f"written: {options.output}: {dim} dimensions to {classes} classes; for embeddings {length}")
    return 0
