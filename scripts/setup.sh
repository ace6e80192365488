#!/usr/bin/env bash
# Installs what Lockstep needs on Debian 12: Debian packages (with sudo where we are not root) and, into a
# project-local .venv, the PyTorch wheel that is our LibTorch plus the Python packages that tests use as oracles.
# Idempotent: a second run only checks. LOCKSTEP_TORCH=/path/to/site-packages/torch uses an existing PyTorch instead.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
  build-essential g++ cmake ninja-build ccache mold git ca-certificates
  python3 python3-venv python3-pip
  libtomlplusplus-dev nlohmann-json3-dev libspdlog-dev libfmt-dev libpcre2-dev libutf8proc-dev
  libxxhash-dev zlib1g-dev libgtest-dev libgmock-dev libtcmalloc-minimal4
  libopenmpi-dev openmpi-bin iproute2 libedit-dev
)
# A browser that opens the report of a step in a test; without it that test is listed as not run.
optional=(chromium fonts-dejavu-core)

is_there() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q '^install ok installed$'; }
missing=() wanted=()
for package in "${packages[@]}"; do is_there "$package" || missing+=("$package"); done
for package in "${optional[@]}"; do is_there "$package" || wanted+=("$package"); done
root=()
if ((${#missing[@]})) && [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "setup: need root or sudo to install: ${missing[*]}" >&2; exit 3; }
fi
[ "$(id -u)" -eq 0 ] || root=(sudo)
# What a command says is shown where it fails.
quietly() {
  local said
  said=$("$@" 2>&1) || { echo "$said" >&2; return 1; }
}
install() { quietly "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"; }
update() { quietly "${root[@]}" apt-get update -q; }
if ((${#missing[@]})); then
  echo "setup: installing ${missing[*]}"
  update
  install "${missing[@]}"
fi
if ((${#wanted[@]})); then
  echo "setup: installing ${wanted[*]}"
  { ((${#missing[@]})) || update; } && install "${wanted[@]}" ||
    echo "setup: goes on without ${wanted[*]}: report_chromium_test does not run" >&2
fi

# The oracles live in the same environment as torch; scripts/requirements.txt pins them.
python=${LOCKSTEP_PYTHON:-python3}
if [ ! -x .venv/bin/python ]; then
  options=()
  [ -n "${LOCKSTEP_TORCH:-}" ] && options=(--system-site-packages)
  "$python" -m venv "${options[@]}" .venv || {
    echo "setup: '$python -m venv' failed; install python3-venv or set LOCKSTEP_PYTHON" >&2; exit 3; }
fi
stamp=.venv/.lockstep-requirements
if ! cmp -s scripts/requirements.txt "$stamp" 2>/dev/null; then
  echo "setup: installing the Python packages of scripts/requirements.txt into .venv"
  if [ -n "${LOCKSTEP_TORCH:-}" ]; then
    grep -v '^torch==' scripts/requirements.txt > .venv/requirements.txt
  else
    cp scripts/requirements.txt .venv/requirements.txt
  fi
  .venv/bin/python -m pip install -q --disable-pip-version-check -r .venv/requirements.txt
  cp scripts/requirements.txt "$stamp"
fi
echo "setup: ready"
