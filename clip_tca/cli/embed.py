"""``clip-tca embed``: encode a data set into the store, and into a file; ``clip-tca cache``: the store itself."""

from __future__ import annotations

import argparse

from clip_tca.cli import options as shared
from clip_tca.core.checks import counted


def add(command: argparse.ArgumentParser) -> None:
    """Add the options of ``embed``."""
    command.description = "Encode images and prompts once. Later runs of eval read the embeddings from the store."
    shared.add_data(command)
    shared.add_model(command)
    shared.add_prompts(command)
    output = "also write one .safetensors file of embeddings and labels"
    command.add_argument("--output", "-o", metavar="FILE", help=output)
    cluster = "encode on this Ray cluster, or without an address on all GPUs or cores of this machine"
    command.add_argument("--ray", nargs="?", const="", metavar="ADDRESS", help=cluster)
    shared.add_quiet(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Encode, and print how many images there are."""
    shared.check_output(options.output, suffixes=(".safetensors",))
    from clip_tca.evaluation.inputs import Inputs

    embedded = Inputs(options.dataset, ray=options.ray, **shared.inputs(options)).embed()
    data, about = embedded.data, embedded.about
    for name, (z, _) in data.domains.items():
        print(f"{about['dataset']}/{name}: {counted(len(z), 'image')}, {z.shape[1]} dimensions")
    cost = about["cost"]
    print(f"{cost['encoded_images']} encoded in {cost['encoding_seconds']:.1f} s; the others were in the store")
    if options.output is not None:
        prompts = about["prompts"]["name"] if about["prompts"] else options.prompts or "single"
        data.save(options.output, f"text.{prompts}")
        print(f"written: {options.output}")
    return 0


def add_cache(command: argparse.ArgumentParser) -> None:
    """Add the options of ``cache``."""
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("path", help="its folder (set CLIP_TCA_CACHE to move it)").set_defaults(run=print_folder)
    actions.add_parser("clear", help="remove all embeddings").set_defaults(run=clear)


def print_folder(_options: argparse.Namespace) -> int:
    """Print the folder of the store."""
    from clip_tca.core.folders import default_root

    print(default_root())
    return 0


def clear(_options: argparse.Namespace) -> int:
    """Remove all stored embeddings."""
    from clip_tca.encoding.store import Store

    store = Store()
    print(f"{store.clear()} entries removed from {store.root}")
    return 0
