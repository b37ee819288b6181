#!/usr/bin/env bash
# Run a command on a bare machine: in a clean copy of HEAD, in a Debian 12 chroot that has Python 3.11.2, make and
# certificates and nothing else. Needs root, debootstrap, a network and 5 GB below /var/tmp (or TMPDIR).
#   sudo tools/bare.sh make test
# Returns the command's exit status, or 77 after one line that says why there can be no chroot here.
# BARE_BASE=FOLDER keeps the fresh Debian there, and takes it from there the next time.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/chroot.sh

impossible() {
    echo "no chroot for a bare machine: $1"
    exit 77
}

obstacle=$(chroot_obstacle)
[ -z "$obstacle" ] || impossible "$obstacle"
place=$(mktemp -d "${TMPDIR:-/var/tmp}/bare.XXXXXX")
trap 'chroot_remove "$place"' EXIT

base=${BARE_BASE:-$place/base}
if [ ! -e "$base" ]; then
    obstacle=$(chroot_base "$base.new" python3,python3-venv,make,ca-certificates) || impossible "$obstacle"
    mv "$base.new" "$base"
fi
root=$place/root
if [ -n "${BARE_BASE:-}" ]; then cp -a "$base" "$root"; else mv "$base" "$root"; fi
chroot_network "$root"
mkdir "$root/root/veritracer"
git -c safe.directory='*' archive HEAD | tar -x -C "$root/root/veritracer"
echo "on a bare machine, Debian $(cat "$root/etc/debian_version"): $*"
chroot_run "$root" sh -c 'cd /root/veritracer && exec "$@"' sh "$@"
