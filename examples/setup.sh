#!/bin/sh
# Installs the packages that the examples need and this machine lacks, by apt, and lists them; prints nothing if all are
# there.
set -u

cd "$(dirname "$0")/.." || exit 1
. cmake/functions.sh
need_for_examples
install_missing
