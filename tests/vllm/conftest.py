"""Tests that need vLLM are collected only where it is installed: by `make test-vllm`, which fails where it cannot be had."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("vllm") else ["installed"]
