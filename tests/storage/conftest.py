"""What the tests of storage share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # For `literal_replay`.
