#!/usr/bin/env bash
# Installs the Debian packages that weir is built with, and those named as arguments. Does nothing
# when all are there.
. "$(dirname "$0")/common.sh"

# Root would leave files that the clone's owner cannot change, and may not see the owner's npm.
if [ "$(id -u)" -eq 0 ] && [ -n "${SUDO_USER:-}" ] && [ "$(stat -c %u "$root")" -ne 0 ]; then
  die "run make without sudo; it asks for sudo itself when packages are missing"
fi

packages=(
  ca-certificates git make npm          # set-up itself
  clang-16 lld-16 libclang-rt-16-dev    # compiler, linker, sanitizers and libFuzzer
  g++ cmake ninja-build                 # GCC build, build system
  libhwy-dev libedit-dev nlohmann-json3-dev libcli11-dev libfmt-dev
  libboost1.81-dev prometheus-cpp-dev libssl-dev
  libgtest-dev libbenchmark-dev
  "$@"
)
# Node.js from elsewhere brings its own npm, and Debian's package would conflict with it.
command -v npm >/dev/null && packages=("${packages[@]/%npm/}")

missing=()
for package in "${packages[@]}"; do
  [ -n "$package" ] || continue
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

command -v apt-get >/dev/null || die "needs Debian's apt-get, or these installed by hand: ${missing[*]}"
as_root=(env DEBIAN_FRONTEND=noninteractive)
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || die "run this as root, or install sudo; missing packages: ${missing[*]}"
  as_root=(sudo "${as_root[@]}")  # sudo drops the environment
fi
say "reading Debian's package lists"
"${as_root[@]}" apt-get update -qq || die "apt-get update failed; is the network reachable?"
say "downloading packages: ${missing[*]}"
install=("${as_root[@]}" apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0)
"${install[@]}" --download-only "${missing[@]}" || die "apt-get could not download: ${missing[*]}"
say "installing them, and what they need"
"${install[@]}" "${missing[@]}" | sed -un 's/^Setting up \([^ ]*\).*/    \1/p' ||
  die "apt-get could not install: ${missing[*]}"
