#!/usr/bin/env bash
# Builds, tests and measures on a machine with an NVIDIA GPU and writes one report, within ten minutes whatever hangs.
#
#     bash scripts/gpu_check.sh [--only build,tests,measure] [--budget SECONDS] ...      --help lists the rest
#
# Needs a CUDA build of PyTorch, nvcc of its major version, g++, CMake and ninja; network no. What such a machine lacks of headers
# and libraries is in .carry, filled elsewhere by scripts/gpu_bundle.sh. The report: $OUT or build/gpu_check, report.txt and
# report.json. Exit code 0: all is well; 1: something failed; 3: no GPU, or something else that the check needs is not there.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 3

# The check ends itself; this is for a check that hangs: it is asked to write what it has, then killed.
budget=570 before=
for word in "$@"; do
  case $word in --budget=*) budget=${word#--budget=} ;; esac
  if [ "$before" = --budget ]; then budget=$word; fi
  before=$word
done
case $budget in '' | *[!0-9]*) budget=570 ;; esac   # the check refuses it

python=$(command -v python3) || { echo "gpu_check: no python3 on the PATH" >&2; exit 3; }
export PYTHONUNBUFFERED=1
exec timeout --kill-after=10 "$((budget + 10))" "$python" scripts/gpu_check "$@"
