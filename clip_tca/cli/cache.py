"""``clip-tca cache``: locate or clear the embedding store."""

from __future__ import annotations

import argparse


def add(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("path", help="its folder (set CLIP_TCA_CACHE to move it)").set_defaults(run=path)
    actions.add_parser("clear", help="remove all embeddings").set_defaults(run=clear)


def path(_options: argparse.Namespace) -> int:
    """Print the folder."""
    from clip_tca.core.folders import default_root

    print(default_root())
    return 0


def clear(_options: argparse.Namespace) -> int:
    """Remove what is stored."""
    from clip_tca.encoding.store import Store

    store = Store()
    print(f"{store.clear()} entries removed from {store.root}")
    return 0
