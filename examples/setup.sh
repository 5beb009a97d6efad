#!/bin/sh
# Installs what the examples need and this machine lacks, by apt; says what, and nothing if all is there.
set -u

cd "$(dirname "$0")/.." || exit 1
. cmake/functions.sh
need_for_examples
install_missing
