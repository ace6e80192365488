#!/usr/bin/env bash
# Fetches the demo text from Debian packages, without root: scripts/demo_corpus.sh [CACHE] (default build/corpus-cache).
# Leaves CACHE/Rdata.rdb (six novels of Jane Austen) and CACHE/bible.txt (King James Bible); `lockstep data demo` makes
# text files of them. A second run only checks that both are there. Exit code 3 where the packages cannot be had.
set -euo pipefail
cache=${1:-$(dirname "$0")/../build/corpus-cache}
packages=(r-cran-janeaustenr bible-kjv bible-kjv-text)
austen_bytes=1601335
bible_bytes=4298239

size_of() { if [ -f "$1" ]; then stat -c %s "$1"; else echo 0; fi; }
complete() {
  [ "$(size_of "$cache/Rdata.rdb")" = "$austen_bytes" ] && [ "$(size_of "$cache/bible.txt")" = "$bible_bytes" ]
}
fail() {
  echo "demo_corpus: $1" >&2
  echo "demo_corpus: any text will do instead: lockstep data tokenizer FILE... and lockstep data prepare FILE..." >&2
  exit 3
}

mkdir -p "$cache"
cache=$(cd "$cache" && pwd)
complete && exit 0

for tool in apt-get dpkg-deb; do
  command -v "$tool" >/dev/null || fail "$tool is not here: the demo text comes from Debian packages (${packages[*]})"
done
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
(cd "$work" && timeout 600 apt-get -q download "${packages[@]}" >apt.log 2>&1) ||
  { cat "$work/apt.log" >&2; fail "apt-get could not download ${packages[*]} (no network, or the package lists are empty: try apt-get update)"; }
for package in "$work"/*.deb; do
  dpkg-deb -x "$package" "$work/tree" || fail "cannot unpack $(basename "$package")"
done

cp "$work/tree/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb" "$work/Rdata.rdb" || fail "r-cran-janeaustenr has no Rdata.rdb"
"$work/tree/usr/bin/bible" -p "$work/tree/usr/lib" gen1:1-rev22:21 >"$work/bible.txt" || fail "the program bible does not run"
mv "$work/Rdata.rdb" "$work/bible.txt" "$cache/"
complete || fail "unexpected sizes: Rdata.rdb $(size_of "$cache/Rdata.rdb") (expected $austen_bytes), bible.txt $(size_of "$cache/bible.txt") (expected $bible_bytes)"
echo "demo_corpus: ready in $cache" >&2
