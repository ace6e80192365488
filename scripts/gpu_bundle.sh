#!/usr/bin/env bash
# Fills one ignored folder with the headers and libraries that a machine with a GPU and without network lacks, so that
# scripts/gpu_check.sh builds there: copies from the Debian packages that scripts/setup.sh has installed.
#
#     scripts/gpu_bundle.sh [--tools] [FOLDER]      FOLDER: .carry
#
# --tools: CMake and ninja too, as PyPI's wheels for Python 3.12, for a machine without them (needs network here).
#
#     FOLDER/libraries/usr   what all rooms may see          FOLDER/nccl/include   nccl.h, for a machine with NCCL's library alone
#     FOLDER/logging/usr     spdlog and fmt: LibTorch has an fmt of its own, and its folder must come first where both are seen
#     FOLDER/wheels          of --tools                      FOLDER/commit         what was bundled
set -euo pipefail
cd "$(dirname "$0")/.."

limit_mib=60   # of 64 that travel, the tree itself included
libraries=(nlohmann-json3-dev libtomlplusplus-dev libpcre2-dev libutf8proc-dev libxxhash-dev zlib1g-dev libgtest-dev libgmock-dev)
logging=(libspdlog-dev libfmt-dev)
tools=(cmake==3.31.6 ninja==1.11.1.4)
fail() { echo "gpu_bundle: $*" >&2; exit 1; }

with_tools= to=.carry
for word in "$@"; do
  case $word in
    --tools) with_tools=yes ;;
    -*) fail "unknown flag $word; only --tools and a folder" ;;
    *) to=$word ;;
  esac
done
command -v dpkg >/dev/null || fail "no dpkg: the bundle is made from Debian's packages"

# A library under every name by which a linker or a loader asks for it; none of them a link, since links do not travel.
copy_library() {  # <file> <below>
  local real soname name
  real=$(readlink -f "$1")
  soname=$(objdump -p "$real" | awk '$1 == "SONAME" { print $2 }')
  for name in "$(basename "$1")" "$(basename "$real")" $soname; do
    install -D -m 644 "$real" "$2$(dirname "$1")/$name"
  done
}

take() {  # <below> <package>...
  local below=$1 package files file
  shift
  for package in "$@"; do
    files=$(dpkg -L "$package" 2>/dev/null) || fail "the package $package is not installed: run scripts/setup.sh"
    while IFS= read -r file; do
      [ -f "$file" ] || continue
      case $file in
        *pcre2-16* | *pcre2-32* | *posix*) ;;
        /usr/lib/*.so) copy_library "$file" "$below" ;;
        /usr/include/* | */cmake/*.cmake | */libg*.a) install -D -m 644 "$file" "$below$file" ;;
      esac
    done <<<"$files"
  done
}

rm -rf "$to"/{libraries,logging,nccl,wheels,commit}
mkdir -p "$to"
take "$to/libraries" "${libraries[@]}"
take "$to/logging" "${logging[@]}"
for header in .venv/lib/python3*/site-packages/nvidia/nccl/include/nccl.h; do
  if [ -e "$header" ]; then install -D -m 644 "$header" "$to/nccl/include/nccl.h"; fi
done
if [ -n "$with_tools" ]; then
  python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    -d "$to/wheels" "${tools[@]}" || fail "pip could not download ${tools[*]}"
fi
commit=$(git rev-parse HEAD 2>/dev/null) || commit=unknown
[ -z "$(git status --porcelain 2>/dev/null)" ] || commit="$commit, with changes"
echo "$commit" > "$to/commit"

bundle=$(du -sb "$to" | cut -f1)
tree=$({ git ls-files -z --cached --others --exclude-standard 2>/dev/null | xargs -0 -r du -cb 2>/dev/null || true; } |
  awk '$2 == "total" { sum += $1 } END { print sum + 0 }')
mib() { awk -v bytes="$1" 'BEGIN { printf "%.1f MiB", bytes / 1048576 }'; }
echo "bundle: $to has $(mib "$bundle"); with the tree $(mib $((bundle + tree))) of at most $limit_mib MiB"
((bundle + tree <= limit_mib << 20)) || fail "that is too much: leave out --tools, or ignored and untracked files of the tree"
echo "on the machine with the GPU, in a copy of this tree with $to: bash scripts/gpu_check.sh"
