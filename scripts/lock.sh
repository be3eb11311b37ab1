#!/bin/sh
# Renews the hashed lock files. They name no index, so they work with whatever index pip is configured for.
set -eu
compile="$1/uv pip compile -q --universal --generate-hashes --no-header --no-emit-index-url --python-version 3.11 pyproject.toml"
$compile --extra embedded --group model --group build -o requirements/serve.txt
$compile --extra embedded --group model --group build --group dev -c requirements/serve.txt -o requirements/dev.txt
