"""``clip-tca cache``: list, locate or clear the embedding store."""

from __future__ import annotations

import argparse


def add(command: argparse.ArgumentParser) -> None:
    """Add the options."""
    actions = command.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="entries, with size and completeness").set_defaults(run=show)
    actions.add_parser("path", help="its folder (set CLIP_TCA_CACHE to move it)").set_defaults(run=path)
    clear = actions.add_parser("clear", help="remove everything, or the entries named")
    clear.add_argument("key", nargs="*", help="key, or the beginning of one, as in the list")
    clear.set_defaults(run=remove)


def show(_options: argparse.Namespace) -> int:
    """One line for each entry."""
    from clip_tca.encoding.store import Store

    store = Store()
    entries = store.entries()
    for key, description, size, complete in entries:
        model = " / ".join(str(part) for part in (description.get("model"), description.get("pretrained")) if part)
        state = "" if complete else "  (incomplete)"
        print(
            f"{key[:12]}  {size / 1e6:8.1f} MB  {description.get('images', 0):6d} images  "
            f"{description.get('title', '')}  {model}  {description.get('precision', '')}{state}"
        )
    print(f"{len(entries)} entries, {sum(size for _, _, size, _ in entries) / 1e6:.1f} MB in {store.root}")
    return 0


def path(_options: argparse.Namespace) -> int:
    """The folder."""
    from clip_tca.encoding.store import default_root

    print(default_root())
    return 0


def remove(options: argparse.Namespace) -> int:
    """Remove entries."""
    from clip_tca.encoding.store import Store

    store = Store()
    print(f"{store.clear(options.key)} entries removed from {store.root}")
    return 0
