"""The author half is one file without dependencies: it is imported without the compiled half of its package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python" / "toolpost"))
