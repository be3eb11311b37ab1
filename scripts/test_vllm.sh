#!/bin/sh
# Runs the tests that need vLLM, in its own virtual environment (`VLLM_VENV`, else .venv-vllm), which is made when it is missing.
# Warnings are not errors here, for they are vLLM's and torch's.
set -eu
cd "$(dirname "$0")/.."
venv=${VLLM_VENV:-.venv-vllm}
sh scripts/vllm.sh "$venv"
export PYTHONPATH=src PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_LOGGING_LEVEL=ERROR
exec "$venv/bin/python" -m pytest -W ignore -p no:cacheprovider tests/vllm/installed "$@"
