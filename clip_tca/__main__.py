"""``clip-tca``, and ``python -m clip_tca``: Ctrl-C is one line from the first import on.

A third of the time of ``import torch``, and of leaving Python after it, goes into looking for cycles among the hundred
thousands of objects that it makes to keep. Here they are looked for less often, and not at all at the end.
"""

import gc
import sys

LOUD = {"onnx", "triton"}
"""Packages that complain at the end of what was not collected."""


def main() -> int:
    """Run one command; its exit code."""
    gc.set_threshold(100_000)
    try:
        from clip_tca.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("clip-tca: interrupted", file=sys.stderr)
        return 130
    finally:
        if not LOUD & sys.modules.keys():
            gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
