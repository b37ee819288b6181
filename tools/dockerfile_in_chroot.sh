#!/usr/bin/env bash
# The Dockerfile's steps in clean Debian chroots, where there is no Docker: build, then serve a model as the
# compose file does, as user 10001 on a read-only root with nothing to write to but /data and /tmp.
#   sudo tools/dockerfile_in_chroot.sh MODEL [FOLDER]     needs debootstrap and Debian's packages; some minutes
set -euo pipefail
model=$(realpath "${1:?a model folder}")
place=${2:-$(mktemp -d)}
cd "$(dirname "$0")/.."
. tools/chroot.sh
obstacle=$(chroot_obstacle)
[ -z "$obstacle" ] || { echo "no chroot: $obstacle"; exit 1; }

base=$place/base build=$place/build run=$place/run data=$place/data
[ -e "$base" ] || chroot_base "$base" python3,python3-venv,ca-certificates
rm -rf "$build" "$run" "$data"
cp -a "$base" "$build" && cp -a "$base" "$run"
ln -s python3 "$build/usr/bin/python" && ln -s python3 "$run/usr/bin/python"  # as in Python's own image

# The stage "build", with pip set up as it is here; the environment is made in /usr/local, because /opt is lent.
mkdir "$build/source" && cp -r pyproject.toml constraints.txt README.md LICENSE src "$build/source/"
chroot_network "$build"
chroot_run "$build" sh -ec 'cd /source && python -m venv /usr/local/veritracer &&
    /usr/local/veritracer/bin/pip install --quiet --no-cache-dir --constraint constraints.txt \
        ".[cli,serve,postgres,encryption]"'

# The stage "run".
chroot "$run" sh -ec 'groupadd --gid 10001 veritracer
    useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin veritracer
    install --directory --owner=10001 --group=10001 /data'
cp -a "$build/usr/local/veritracer" "$run/usr/local/"
mkdir "$data" && cp -r "$model" "$data/model"
cat > "$data/visit.sh" <<'INSIDE'
set -eu
cd /data
! touch /usr/x /data/../x 2> /dev/null || { echo "the root can be written to"; exit 1; }
key=$(veritracer serve --keys keys.json --add-key desk --scopes decide | grep -oE '[A-Za-z0-9_-]{24,}' | head -n 1)
veritracer serve model --keys keys.json --host 0.0.0.0 --port 8099 --workers 2 --ledger promises.db > log 2>&1 &
service=$!
ask() { python -c 'import sys, urllib.request as u
print(u.urlopen(u.Request(sys.argv[1], headers={"Authorization": "Bearer " + sys.argv[2]}), timeout=5).status)' "$@"; }
for _ in $(seq 90); do ask http://127.0.0.1:8099/readyz - 2> /dev/null && break; sleep 1; done
! ask http://127.0.0.1:8099/v1/model - 2> /dev/null || { echo "let in without a key"; exit 1; }
ask http://127.0.0.1:8099/v1/model "$key"
kill -TERM "$service"; wait "$service" || true
grep -q '"event": "stopped"' log
echo "served as $(id -un) on a read-only root, refused without a key, stopped when asked to"
INSIDE
chown -R 10001:10001 "$data"
export RUN=$run DATA=$data
unshare --mount bash -euc '
    mount --bind "$RUN" "$RUN" && mount --bind "$DATA" "$RUN/data" && mount -t proc proc "$RUN/proc"
    mount -t tmpfs -o size=256m,mode=1777 tmpfs "$RUN/tmp" && mount --rbind /dev "$RUN/dev"
    mount -o remount,bind,ro "$RUN"
    exec chroot --userspec=10001:10001 --groups= "$RUN" setpriv --no-new-privs env -i HOME=/tmp OMP_NUM_THREADS=1 \
        PATH=/usr/local/veritracer/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 sh /data/visit.sh'
