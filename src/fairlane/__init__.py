"""Fairlane: an admission and scheduling gateway for LLM inference."""

__version__ = "0.1.0"
