#!/bin/sh
# Makes the virtual environment $1 with exactly the packages of the lock file $2; without that, an empty one.
# Debian's python3 comes without ensurepip; as root the missing package is installed, else it is named.
set -eu
venv=$1 lock=${2:-}
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "fairlane needs Python 3.11 or newer; '$python' is $("$python" --version). Set PYTHON=/path/to/python3.11." >&2
    exit 1
}
if [ ! -x "$venv/bin/pip" ]; then
    "$python" -c 'import ensurepip' 2>/dev/null || {
        version=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            echo "installing $version, which this Python needs to make virtual environments" >&2
            apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$version" >/dev/null
        else
            echo "this Python cannot make virtual environments; install it with: sudo apt-get install $version" >&2
            exit 1
        fi
    }
    "$python" -m venv "$venv"
fi
[ -z "$lock" ] || "$venv/bin/pip" install --disable-pip-version-check --require-hashes --no-deps -q --progress-bar on -r "$lock"
