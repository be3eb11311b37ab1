"""Tests run on the source in this folder, programs that they start included.

With FAIRLANE_INSTALLED=1 they run on the product as it was built last, which is compiled where it can be.
"""

import os
import sys
from pathlib import Path

if os.environ.get("FAIRLANE_INSTALLED") != "1":
    SOURCE = str(Path(__file__).parents[1] / "src")
    sys.path.insert(0, SOURCE)
    os.environ["PYTHONPATH"] = SOURCE
