"""``python -m clip_tca``: the same as ``clip-tca``."""

import sys

from clip_tca.cli import main

sys.exit(main())
