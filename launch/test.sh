#!/usr/bin/env bash
# Runs the tests, from the repository root: sets up .venv with the dev extra if needed, then pytest.
#
#   bash launch/test.sh [pytest arguments]      for example: bash launch/test.sh tests/test_x.py -k name
#
# Tests run on the CPU unless JAX_PLATFORMS says otherwise, in as many processes as there are cores
# (at most 4) unless -n says otherwise. PYTHON and BARTER_EXTRAS: see launch/setup.sh.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd -- "$root"

if [[ -z ${JAX_PLATFORMS+set} ]]; then
  export JAX_PLATFORMS=cpu
fi
if [[ $JAX_PLATFORMS == cpu ]]; then
  export BARTER_EXTRAS="${BARTER_EXTRAS-}"  # no CUDA packages for tests that do not use them
fi
bash launch/setup.sh dev

parallel=yes
for argument in "$@"; do
  case $argument in
    -n* | --numprocesses | --numprocesses=* | --pdb | --trace | no:xdist | -pno:xdist) parallel=no ;;
  esac
done
if [[ $parallel == yes ]]; then
  cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
  if command -v nproc >/dev/null; then
    cores=$(nproc)
  fi
  set -- -n "$((cores < 4 ? cores : 4))" "$@"
fi
exec .venv/bin/python -m pytest "$@"
