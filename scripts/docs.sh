#!/bin/sh
# Writes the generated pages anew, with the Python of the folder $1. A page is replaced only when its generator has succeeded.
set -eu
write() {
    PYTHONPATH=src "$1/python" -m "$2" >"$3.new" && mv "$3.new" "$3"
}
PYTHONPATH=src "$1/python" scripts/reasons.py
write "$1" fairlane.telemetry.reference docs/metrics.md
write "$1" fairlane.settings.reference docs/configuration.md
write "$1" fairlane.settings.schema schema/fairlane.schema.json
