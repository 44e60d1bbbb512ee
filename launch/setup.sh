#!/usr/bin/env bash
# Installs barter_jax, editable, with pinned dependencies into .venv in the repository root.
# Does nothing, fast, when that is already done.
#
#   bash launch/setup.sh [EXTRA ...]      for example: bash launch/setup.sh dev
#
# PYTHON         the interpreter that makes .venv (default: python3; 3.11 or newer)
# BARTER_EXTRAS  extras to install besides, comma separated, may be empty. Unset: "cuda" where
#                an NVIDIA GPU is found ("cuda12" where its driver is older than 580), else none.
set -euo pipefail

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cd -- "$root"
venv=.venv
stamp=$venv/.barter_jax_installed    # line 1: hash of what was asked for; line 2: the extras
busy=$venv/.barter_jax_installing    # there while an install runs, and after one that broke off
owned=$venv/.barter_jax_made         # this script made .venv, so it may make it anew

fail() {
  printf 'barter_jax: %s\n' "$1" >&2
  exit 2
}

# Prints a hash of everything that decides what gets installed, extras excepted.
fingerprint() {
  "$venv/bin/python" -I -S -c '
import hashlib, os, sys
digest = hashlib.sha256(repr((sys.version, os.getcwd())).encode())
for name in ("pyproject.toml", "launch/constraints.txt"):
    with open(name, "rb") as file:
        digest.update(hashlib.sha256(file.read()).digest())
print(digest.hexdigest())' 2>/dev/null
}

# Sets have_hash and have_extras from the stamp; empty when there is none.
read_stamp() {
  have_hash="" have_extras=""
  if [[ -f $stamp && ! -e $busy ]]; then
    { IFS= read -r have_hash && IFS= read -r have_extras; } <"$stamp" || have_hash=""
  fi
}

has() {  # has LIST ITEM: whether the comma separated list holds the item
  [[ ,$1, == *",$2,"* ]]
}

# Sets wanted, the extras asked for: arguments, then BARTER_EXTRAS or what the machine has.
choose_extras() {
  local IFS=,
  wanted="$*"
  if [[ -n ${BARTER_EXTRAS+set} ]]; then
    wanted+=",${BARTER_EXTRAS//[[:space:]]/}"
  elif has "$have_extras" cuda || has "$have_extras" cuda12; then
    :  # already there: do not ask the driver at every start
  elif command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
    local driver
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null) || driver=""
    driver=${driver%%.*}
    if [[ $driver =~ ^[0-9]+$ ]] && ((driver < 580)); then
      wanted+=",cuda12"
    else
      wanted+=",cuda"
    fi
  fi
}

# Succeeds when .venv holds what is wanted. Leaves in hash what the stamp has to say.
up_to_date() {
  hash=$(fingerprint) || hash=""
  read_stamp
  choose_extras "$@"
  [[ -n $hash && $hash == "$have_hash" ]] || return 1
  [[ -z ${PYTHON:-} || $("$venv/bin/python" -V 2>&1) == "$("$PYTHON" -V 2>&1)" ]] || return 1
  local extra
  for extra in ${wanted//,/ }; do
    has "$have_extras" "$extra" || return 1
  done
}

# Makes .venv when there is none that can be used. Removes one only if this script made it.
make_venv() {
  local python=${PYTHON:-python3}
  if [[ ! -e $busy || ! -e $owned ]] && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    [[ -n ${PYTHON:-} && $("$venv/bin/python" -V 2>&1) != "$("$python" -V 2>&1)" ]] || return 0
  fi
  if [[ -e $venv && ! -e $owned ]]; then
    fail ".venv has no pip, or another Python than PYTHON=$python; it was not made here: remove it, then start again"
  fi
  check_python "$python" "name another with PYTHON=/path/to/python3"
  rm -rf -- "$venv"
  mkdir -- "$venv"
  touch -- "$owned" "$busy"
  "$python" -m venv "$venv" >&2 ||
    fail "'$python -m venv' failed (on Debian and Ubuntu: apt install python3-venv)"
}

check_python() {  # check_python INTERPRETER HINT
  local version
  version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
    fail "no working Python at '$1'; $2"
  local major=${version%%.*} minor=${version#*.}
  ((major > 3 || (major == 3 && minor >= 11))) ||
    fail "needs Python 3.11 or newer, and '$1' is $version; $2"
}

if up_to_date "$@"; then
  exit 0
fi

if [[ -n ${PYTHON:-} || ! -x $venv/bin/python ]]; then
  check_python "${PYTHON:-python3}" "name another with PYTHON=/path/to/python3"
fi

# One install at a time. Another start waits here, and then mostly has nothing left to do.
if command -v flock >/dev/null; then
  exec 9>.venv.lock
  if ! flock -n 9; then
    echo "barter_jax: waiting for another install into .venv ..." >&2
    flock 9
  fi
  if up_to_date "$@"; then
    exit 0
  fi
fi

echo "installing barter_jax into .venv (once, a minute or so) ..." >&2
make_venv
check_python "$venv/bin/python" "remove .venv, then start again"
hash=$(fingerprint) || fail "cannot read pyproject.toml or launch/constraints.txt"
if [[ $hash == "$have_hash" ]]; then
  wanted+=",$have_extras"  # nothing but extras is new: the ones already there stay listed
fi
extras=""
for extra in ${wanted//,/ }; do
  has "$extras" "$extra" || extras+=${extras:+,}$extra
done
"$venv/bin/python" -I -c '
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    known = tomllib.load(file)["project"]["optional-dependencies"]
unknown = [name for name in sys.argv[1].split(",") if name and name not in known]
if unknown:
    sys.exit("barter_jax: no such extra: " + ", ".join(unknown) + "; there are: " + ", ".join(known))
' "$extras" || exit 2
touch -- "$busy"
rm -f -- "$stamp"
if ! "$venv/bin/python" -m pip install -qq --no-input --disable-pip-version-check \
  --config-settings editable_mode=compat \
  --constraint launch/constraints.txt --editable ".${extras:+[$extras]}" >&2; then
  echo "barter_jax: the install failed; the lines above say why" >&2
  exit 1
fi
printf '%s\n%s\n' "$hash" "$extras" >"$stamp.new"
mv -f -- "$stamp.new" "$stamp"
rm -f -- "$busy"
