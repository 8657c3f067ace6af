"""``python -m rollmill`` is the command ``rollmill``."""

from __future__ import annotations

import sys

from rollmill.cli import main

if __name__ == "__main__":  # processes of a run import this module under another name
    sys.exit(main())
