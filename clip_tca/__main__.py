"""``clip-tca``, and ``python -m clip_tca``: Ctrl-C is one line from the first import on."""

import sys


def main() -> int:
    """Run one command; its exit code."""
    try:
        from clip_tca.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("clip-tca: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
