# shellcheck shell=bash
# Minimal Debian roots to run commands in, on Linux and as root: functions for the scripts beside this one.
# All mounts are in a namespace that ends with the command, so that none outlives it, however it ends.

# Print in one line why no root can be made on this machine; print nothing if it can.
chroot_obstacle() {
    local program
    [ "$(id -u)" = 0 ] || { echo "only root can make one"; return; }
    for program in debootstrap unshare; do
        command -v "$program" > /dev/null || { echo "$program is not installed"; return; }
    done
    unshare --mount --pid --fork mount -t tmpfs tmpfs /mnt 2> /dev/null || echo "mounting is not permitted"
}

# chroot_base FOLDER PACKAGES: make a Debian 12 with these packages (a,b,c) and what they need. Print why it failed.
chroot_base() {
    local log
    log=$(debootstrap --variant=minbase --include="$2" bookworm "$1" 2>&1) ||
        { echo "debootstrap: ${log##*$'\n'}"; return 1; }
}

# chroot_network ROOT: copy what a network needs from this machine: names, certificates, pip's configuration.
chroot_network() {
    local file
    for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt /etc/pip.conf; do
        [ ! -e "$file" ] || cp -L "$file" "$1$file"
    done
    if [ -e "$HOME/.config/pip" ]; then
        mkdir -p "$1/root/.config" && cp -rL "$HOME/.config/pip" "$1/root/.config/"
    fi
    # Files that the environment names, such as the certificates of a company.
    chroot_environment | sed -n 's/^[^=]*=\//\//p' | sort -u | while read -r file; do
        [ ! -f "$file" ] || install -D -m 644 "$file" "$1$file"
    done
}

# Print what a command inside gets of this environment: pip's settings, proxies, certificates, whether this is CI.
chroot_environment() {
    env | grep -E '^(CI|PIP_[A-Z_]+|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE|[A-Za-z]+_(PROXY|proxy))=' || true
}

# chroot_run ROOT COMMAND...: run it as root, without this machine's other processes, locale or programs. Folders
# below /opt, where packages for pip may be, can be read.
chroot_run() {
    local root=$1 given
    shift
    mapfile -t given < <(chroot_environment)
    # The inner shell stays (`:`): as process 1 it has to take in what others leave behind.
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --kill-child bash -euc '
        root=$1; shift
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        for folder in /opt/*/; do
            [ -d "$folder" ] || continue
            mkdir -p "$root$folder"
            mount --bind "$folder" "$root$folder" && mount -o remount,bind,ro "$root$folder"
        done
        chroot "$root" env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
        :' bash "$root" ${given[@]+"${given[@]}"} "$@"
}

# chroot_remove FOLDER: delete it and the roots inside, but never through a mount.
chroot_remove() {
    if grep -qF " $(realpath "$1")/" /proc/self/mounts; then
        echo "not deleted, because something is mounted inside: $1" >&2
    else
        rm -rf --one-file-system "$1"
    fi
}
