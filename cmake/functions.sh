# Functions of the scripts that install, build and run: progress messages and packages. Sourced from the top of the
# repository by examples/run.sh, tests/run.sh and both setup.sh.

step() { echo "==> $*"; }

# busy WHAT COMMAND...: runs a command that may be silent for long; prints a sign of life every eight seconds.
busy() {
  what=$1
  shift
  (
    seconds=0
    # The sleep must not keep the output open after the command; $$ is the script, which may have been interrupted.
    while sleep 8 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
      seconds=$((seconds + 8))
      echo "    still $what, $seconds s"
    done
  ) </dev/null &
  progress=$!
  status=0
  "$@" || status=$?
  kill "$progress" 2>/dev/null
  wait "$progress" 2>/dev/null || true
  return "$status"
}

# Configures the build directory $1 with the remaining options. Sets the generator by the variable, not by -G: a
# configured directory then keeps its own.
configure() {
  directory=$1
  shift
  step "Configuring in $directory"
  busy configuring env CMAKE_GENERATOR="${CMAKE_GENERATOR:-Ninja}" cmake -S . -B "$directory" --log-level=WARNING "$@"
}

missing=''

# need PACKAGE COMMAND...: the package is missing unless the command succeeds. The command looks for what the package
# installs (a program, a header), which may also have been installed in another way.
need() {
  package=$1
  shift
  "$@" >/dev/null 2>&1 || missing="$missing $package"
}

program() { command -v "$1"; }
header() {
  printf '#if !__has_include(<%s>)\n#error missing\n#endif\n' "$1" | c++ -E -I/usr/include/eigen3 -x c++ -
}

# Packages to compile the examples and to download their models.
need_for_examples() {
  need g++ program g++
  need cmake program cmake
  need ninja-build program ninja
  need pkg-config program pkg-config
  need libeigen3-dev header Eigen/Core
  need nlohmann-json3-dev header nlohmann/json.hpp
  need libcli11-dev header CLI/CLI.hpp
  need libutf8proc-dev header utf8proc.h
  need libpng-dev header png.h
  need libedit-dev header editline/readline.h
  need python3 program python3
  need python3-pip python3 -m pip --version
}

# Runs apt-get, whose messages go to the file $log. Lock::Timeout waits for another apt, as on a machine that has just
# started.
apt() {
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 \
    -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 "$@" >"$log" 2>&1 </dev/null
}

# Installs $missing by apt and prints a message; prints nothing if it is empty. Without apt-get, or the right to use it,
# prints the list and returns.
install_missing() {
  [ -n "$missing" ] || return 0
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: no apt-get here; please install (Debian's names):$missing"
    return 0
  fi
  as_root=''
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
      echo "setup: neither root nor sudo; please install:$missing"
      return 0
    fi
    as_root=sudo
  fi

  echo "setup: installing$missing"
  log=$(mktemp) || return 1
  trap 'rm -f "$log"' EXIT
  # An old list of packages may be enough.
  busy 'refreshing the list of packages' apt update || echo "setup: apt-get update failed: $(tail -n 1 "$log")"
  # shellcheck disable=SC2086  # a list of words
  if ! busy installing apt install --no-install-recommends $missing; then
    # One by one, so that one unknown name does not prevent the installation of the others.
    for package in $missing; do
      busy "installing $package" apt install --no-install-recommends "$package" ||
        echo "setup: could not install $package: $(grep '^E:' "$log" | head -n 1)"
    done
  fi
}
