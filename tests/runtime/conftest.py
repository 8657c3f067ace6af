"""What processes run must be importable in them: they inherit this process's ``sys.path``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
