#!/bin/sh
# Compares the simulator's engine with vLLM's scheduler, or with a name in front of the options, as `steps`, runs another module of this
# folder. The first time this installs vLLM into a virtual environment of its own (`VLLM_VENV`, else .venv-vllm): see scripts/vllm.sh.
set -eu
cd "$(dirname "$0")/../.."
venv=${VLLM_VENV:-.venv-vllm}
module=compare
case ${1:-} in [a-z]*) module=$1 && shift ;; esac
sh scripts/vllm.sh "$venv"
export PYTHONPATH=src:. PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_LOGGING_LEVEL=ERROR
exec "$venv/bin/python" -m "bench.vllm_scheduler.$module" "$@"
