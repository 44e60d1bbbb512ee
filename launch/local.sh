#!/usr/bin/env bash
# Trains on this machine: sets up .venv if needed, then starts barter_jax.main.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)

usage() {
  cat <<'EOF'
usage: bash launch/local.sh [flags of barter_jax.main ...]

Trains with configs/vit_tiny.py, or with the --config=FILE given, on this machine's GPU, TPU or
CPU. The first start installs barter_jax into .venv in the repository root. Paths, and runs/ that
holds the results, are relative to the directory you stand in. The same command resumes a run.

  bash launch/local.sh
  bash launch/local.sh --config.train.epochs=5 --config.seed=1
  bash launch/local.sh --config=configs/vit_tiny.py --workdir=runs/mine

flags:
  --config=FILE          the config file (default: configs/vit_tiny.py of this repository)
  --config.KEY=VALUE     overrides one of its values; may be repeated
  --workdir=DIR          where the run is kept (default: runs/<config name>)
  --overwrite            replaces a run with another config that is kept there
  --helpfull             every flag of barter_jax.main

environment:
  BARTER_KEEP_MEMORY     0 has the C library give memory back to the system after each step
  PYTHON                 the interpreter that makes .venv (default: python3; 3.11 or newer)
  BARTER_EXTRAS          extras to install, comma separated, may be empty (default: cuda where an
                         NVIDIA GPU is found); on a TPU machine: BARTER_EXTRAS=tpu
EOF
}

# --config goes first, since its overrides (--config.KEY=VALUE) have to follow it.
config=() others=()
while (($#)); do
  case $1 in
    -h | --help | -help)
      usage
      exit 0
      ;;
    --config=* | -config=*) config+=("$1") ;;
    --config | -config)
      config+=("$1")
      if (($# > 1)); then
        config+=("$2")
        shift
      fi
      ;;
    --)
      others+=("$@")
      break
      ;;
    *) others+=("$1") ;;
  esac
  shift
done
if ((${#config[@]} == 0)); then
  config=("--config=$root/configs/vit_tiny.py")
fi

# Huge pages for what is allocated: fewer of them to look up. glibc ignores what it does not know.
export GLIBC_TUNABLES=${GLIBC_TUNABLES-glibc.malloc.hugetlb=1}

bash "$root/launch/setup.sh"
exec "$root/.venv/bin/python" -m barter_jax.main "${config[@]}" ${others[@]+"${others[@]}"}
