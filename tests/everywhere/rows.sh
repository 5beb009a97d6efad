# Functions for a table of results; sourced, from the top of the repository, by tests/compilers.sh and
# tests/everywhere.sh.

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# Adds a row: what, how, result.
row() {
  printf '%-24s %-18s %s\n' "$1" "$2" "$3" | tee -a "$work/rows" >&2
}

# Compiles tests/everywhere/program.cpp and runs it: what, how, the runner (may be empty), compiler and its flags.
run_program() {
  what=$1 how=$2 runner=$3
  shift 3
  if ! command -v "$1" >"$work/found"; then
    row "$what" "$how" "not tried: $1 is not installed"
    return
  fi
  if [ -n "$runner" ] && ! command -v "${runner%% *}" >"$work/found"; then
    row "$what" "$how" "not tried: ${runner%% *} is not installed"
    return
  fi
  # Header-only libraries of this machine, which can be used for every processor.
  mkdir -p "$work/include"
  ln -sf /usr/include/eigen3/Eigen /usr/include/nlohmann "$work/include/"
  if "$@" -Iinclude -isystem "$work/include" tests/everywhere/program.cpp -o "$work/program.exe" 2>"$work/errors"; then
    # $runner may consist of several words.
    if result=$(TMPDIR=$work $runner "$work/program.exe" 2>"$work/errors"); then
      row "$what" "$how" "ran: $(printf '%s' "$result" | tr -d '\r')"
      return
    fi
    row "$what" "$how" "FAILED to run: $result"
  else
    row "$what" "$how" "FAILED to compile"
  fi
  head -n 30 "$work/errors" >&2
  failures=$((failures + 1))
}

# Runs a command with its output in a file: what, how, the command. Shows the end of the output of a failure.
command_row() {
  what=$1 how=$2
  shift 2
  begin=$(date +%s)
  if "$@" >"$work/output" 2>&1; then
    row "$what" "$how" "passed in $(($(date +%s) - begin)) s"
  else
    row "$what" "$how" "FAILED after $(($(date +%s) - begin)) s"
    tail -n 30 "$work/output" >&2
    failures=$((failures + 1))
  fi
}

# Prints the whole table again; fails if a row failed.
print_rows() {
  echo
  printf '%-24s %-18s %s\n' "what" "how" "result"
  cat "$work/rows"
  [ "$failures" -eq 0 ]
}
