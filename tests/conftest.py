"""Tests run on the source in this folder, programs that they start included.

With FAIRLANE_INSTALLED=1 they run on the product as it was built last, which is compiled where it can be.
"""

import os
import sys
from pathlib import Path

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # for the hundreds of programs that tests start: Python compiles the source once

if os.environ.get("FAIRLANE_INSTALLED") != "1":
    SOURCE = str(Path(__file__).parents[1] / "src")
    sys.path.insert(0, SOURCE)
    os.environ["PYTHONPATH"] = SOURCE
