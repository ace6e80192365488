#!/usr/bin/env bash
# Builds targets (none: all) in build/release, which it configures where that was not done: one line for every tenth of the
# work, and all that a failing command says.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/release
[ -f "$build/build.ninja" ] || cmake --preset release --log-level=NOTICE
echo "build: ${*:-everything}"
ninja -C "$build" "$@" | awk '
  match($0, /^\[[0-9]+\/[0-9]+\] /) {
    split(substr($0, 2, RLENGTH - 3), step, "/")
    tenth = int(10 * step[1] / step[2])
    if (tenth < last) last = 0  # after configuring anew
    if (tenth > last && step[2] > 20) { printf "build: %d %% of %d steps\n", 10 * tenth, step[2]; fflush(); last = tenth }
    next
  }
  /^ninja: (Entering directory|no work to do)|^-- / { next }
  { print; fflush() }'
