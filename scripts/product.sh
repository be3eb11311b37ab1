#!/bin/sh
# Builds the product from this folder and installs it into the virtual environment $1, in place of what was there: compiled where
# a C compiler and Python's headers are found, else as source. FAIRLANE_COMPILE=0 and =1 decide otherwise (see hatch_build.py).
set -eu
missing=$("$1/bin/python" -c 'import hatch_build; print(hatch_build.obstacle() or "")')
if [ "${FAIRLANE_COMPILE:-}" = 0 ]; then
    echo "installing Fairlane as source" >&2
elif [ -n "$missing" ]; then
    echo "installing Fairlane as source: $missing. It runs the same, and a request takes about twice the CPU time." >&2
else
    echo "compiling Fairlane: about a minute, once (FAIRLANE_COMPILE=0 leaves it out)" >&2
fi
"$1/bin/pip" install --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall -q .
"$1/bin/fairlane" --version >&2
