#!/usr/bin/env bash
# Whether the commands of README.md's section "Two commands" work on a bare machine: both are run in a fresh Debian 12 that has nothing but the
# repository as it is committed, as root and as an ordinary user with sudo. Needs root.
#
#   tools/try_bare.sh                   about 40 minutes on two cores
#   tools/try_bare.sh --run-only        only the first command
#   tools/try_bare.sh --long            root runs the long trials, too
#   tools/try_bare.sh --share-build     the user begins with what root has built
#   tools/try_bare.sh --out DIR         keeps the pictures and what was printed
#   tools/try_bare.sh --keep            keeps the two machines
#
# What this machine needs to reach mirrors and registries goes along: its proxies, certificates, and settings of apt, pip and cargo. That
# is the network, not the machine.
set -euo pipefail

run_only='' long='' share_build='' keep='' out=''
while [ $# -gt 0 ]; do
    case $1 in
        --run-only) run_only=yes ;;
        --long) long=yes ;;
        --share-build) share_build=yes ;;
        --keep) keep=yes ;;
        --out)
            mkdir -p "${2:?--out needs a folder}"
            out=$(realpath "$2")
            shift
            ;;
        *)
            sed -n '/^#   /s/^#   //p' "$0" >&2
            exit 2
            ;;
    esac
    shift
done
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "a chroot needs root: sudo $0" >&2; exit 1; }

release=bookworm
mapfile -t commands < <(sed -n '/^## Two commands/,/^## /s/^    \(tools\/[^#]*[^# ]\) *\(#.*\)\?$/\1/p' README.md)
[ ${#commands[@]} = 2 ] || { echo "README.md has ${#commands[@]} commands of tools/ in its section \"Two commands\", not 2" >&2; exit 1; }
[ -z "$run_only" ] || commands=("${commands[0]}")

if ! command -v debootstrap >/dev/null; then
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 install -y --no-install-recommends debootstrap >/dev/null ||
        { echo "debootstrap is missing: apt-get update && apt-get install debootstrap" >&2; exit 1; }
fi

work=$(mktemp -d "${TMPDIR:-/var/tmp}/impasto-bare.XXXXXX")
# What runs inside has mounts and processes of its own, which end with its first process: nothing is left to unmount or to kill.
inside=''
# shellcheck disable=SC2317 # called by traps
finish() {
    trap - EXIT INT TERM HUP
    if [ -n "$inside" ]; then
        # The first process inside, not unshare, which waits for it. With it all others end.
        grep -lsx "PPid:[[:space:]]*$inside" /proc/[0-9]*/status | cut -d / -f 3 | xargs -r kill -KILL || true
        wait "$inside" || true
    fi
    if [ -n "$keep" ]; then
        echo "kept: $work"
    elif grep -q " $work/" /proc/mounts; then
        echo "something is mounted below $work: not removed" >&2
    else
        rm -rf --one-file-system "$work"
    fi
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

# isolated COMMAND...: with mounts and processes of its own. In the background, or signals would wait for its end.
isolated() {
    local status=0
    unshare --mount --pid --fork --kill-child "$@" </dev/null &
    inside=$!
    wait "$inside" || status=$?
    inside=''
    return $status
}

begin() {
    printf '== %s\n' "$1"
    begun=$EPOCHSECONDS
}
took() { printf '   %s s%s\n' $((EPOCHSECONDS - begun)) "${1:+: $1}"; }

# The network: where this machine gets that Debian from, if it does.
apt_sources() {
    local own
    own=$(apt-get update --print-uris 2>/dev/null | sed -n "s|^'\(.*\)/dists/\(${release}[a-z-]*\)/InRelease'.*|deb \1 \2 main|p")
    if grep -q " $release main" <<<"$own"; then echo "$own"; fi
}

# The network: certificates that this machine trusts and Debian does not ship, where update-ca-certificates finds them.
certificates() {
    local bundle=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
    [ -e "$bundle" ] || return 0
    cat /usr/share/ca-certificates/*/*.crt 2>/dev/null | awk -v into="$1" '
        /BEGIN CERTIFICATE/ { key = ""; text = "" }
        { text = text $0 "\n"; if ($0 !~ /CERTIFICATE/) key = key $0 }
        /END CERTIFICATE/ {
            if (FILENAME == "-") shipped[key] = 1
            else if (!(key in shipped)) { file = into "/network-" ++count ".crt"; printf "%s", text >file; close(file); shipped[key] = 1 }
        }' - "$bundle"
}

# The network: variables. Those that name a bundle of certificates name Debian's, which exists once the package ca-certificates is there.
variables() {
    local name
    for name in $(compgen -e); do
        case $name in
            CI | *_proxy | *_PROXY | PIP_INDEX_URL | PIP_EXTRA_INDEX_URL | PIP_TRUSTED_HOST | PIP_DEFAULT_TIMEOUT | PIP_RETRIES | \
                CARGO_HTTP_TIMEOUT | CARGO_HTTP_MULTIPLEXING | CARGO_NET_* | CARGO_REGISTRIES_*_INDEX | CARGO_SOURCE_* | \
                RUSTUP_DIST_SERVER | RUSTUP_UPDATE_ROOT)
                printf '%s\n' "$name=${!name}"
                ;;
            SSL_CERT_FILE | CURL_CA_BUNDLE | REQUESTS_CA_BUNDLE | PIP_CERT | GIT_SSL_CAINFO | CARGO_HTTP_CAINFO)
                printf '%s\n' "$name=/etc/ssl/certs/ca-certificates.crt"
                ;;
        esac
    done
}

# The fresh system that both machines begin as.
make_base() {
    local sources mirror bundle=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt} file
    sources=$(apt_sources)
    mirror=$(awk -v release="$release" '$3 == release { print $2; exit }' <<<"$sources")
    if ! isolated debootstrap --variant=minbase "$release" "$base" ${mirror:+"$mirror"} >"$work/debootstrap.log" 2>&1; then
        tail -n 20 "$work/debootstrap.log" >&2
        return 1
    fi
    # debootstrap itself writes only the first of the sources that a Debian has.
    if [ -z "$sources" ]; then
        mirror=$(awk '{ print $2 }' "$base/etc/apt/sources.list")
        sources=$(printf 'deb %s main\n' "$mirror $release" "$mirror $release-updates" "${mirror%/}-security $release-security")
    fi
    echo "$sources" >"$base/etc/apt/sources.list"
    rm -rf "$base"/var/lib/apt/lists/*_*
    cp /etc/resolv.conf /etc/hosts "$base/etc/"
    apt-config dump | grep -E '^Acquire::(https?::|Retries|Check-Valid-Until)' >"$base/etc/apt/apt.conf.d/90network" || true
    if [ -e "$bundle" ]; then
        cp -L "$bundle" "$base/etc/apt/network.crt"
        echo 'Acquire::https::CaInfo "/etc/apt/network.crt";' >>"$base/etc/apt/apt.conf.d/90network"
    fi
    mkdir -p "$base/usr/local/share/ca-certificates"
    certificates "$base/usr/local/share/ca-certificates"
    for file in /etc/pip.conf ~/.pip/pip.conf ~/.config/pip/pip.conf; do
        [ ! -e "$file" ] || cat "$file"
    done | sed 's|^\( *cert *= *\).*|\1/etc/ssl/certs/ca-certificates.crt|' >"$base/etc/pip.conf"
    # Of cargo's settings only where crates come from.
    for file in "${CARGO_HOME:-$HOME/.cargo}"/config "${CARGO_HOME:-$HOME/.cargo}"/config.toml; do
        [ ! -e "$file" ] || awk '/^\[/ { taken = /^\[(http|net|source|registry|registries)[].]/ } taken' "$file"
    done | sed 's|^\( *cainfo *= *\).*|\1"/etc/ssl/certs/ca-certificates.crt"|' >"$work/config.toml"
}

# make_machine NAME: a copy of the base with a clone of the repository; the user's has sudo.
make_machine() {
    local machine=$work/$1 owner=root
    cp -a "$base" "$machine"
    git clone --quiet --depth 1 "file://$PWD" "$machine/srv/impasto"
    if [ "$1" = user ]; then
        owner=painter
        chroot "$machine" useradd --create-home --shell /bin/bash painter
        inside_of user root 'apt-get -q update && apt-get -qy install --no-install-recommends sudo' >"$work/sudo.log" 2>&1 ||
            { tail -n 20 "$work/sudo.log" >&2; return 1; }
        echo 'painter ALL=(ALL) NOPASSWD: ALL' >"$machine/etc/sudoers.d/painter"
        rm -rf "$machine"/var/lib/apt/lists/*_*
    fi
    chroot "$machine" chown -R "$owner:" /srv/impasto
}

# inside_of NAME LOGIN COMMAND: in the repository on that machine, with an environment and devices of its own.
inside_of() {
    local machine=$work/$1 home=/root path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin cargo
    [ "$2" = root ] || { home=/home/$2 path=/usr/local/bin:/usr/bin:/bin; }
    # What cargo has built depends on where its crates are.
    cargo=$home/.cargo
    [ -z "$share_build" ] || cargo=/srv/cargo
    # Downloads of packages are shared, of cargo and pip too; they belong to whoever runs now.
    mkdir -p "$work/downloads"/{apt,cargo,pip} "$machine$cargo/registry" "$machine$home/.cache/pip"
    cp "$work/config.toml" "$machine$cargo/"
    chroot "$machine" chown -R "$2:" "$cargo" "$home"
    chown -R --reference="$machine$home" "$work/downloads"/{cargo,pip}
    # shellcheck disable=SC2016
    isolated bash -euc '
        machine=$1 login=$2 home=$3 cargo=$4 downloads=$5
        shift 5
        mount -t proc proc "$machine/proc"
        mount -t sysfs -o ro sysfs "$machine/sys"
        mount -t tmpfs -o mode=755 tmpfs "$machine/dev"
        for device in null zero full random urandom tty; do
            touch "$machine/dev/$device"
            mount --bind "/dev/$device" "$machine/dev/$device"
        done
        mkdir "$machine/dev/pts" "$machine/dev/shm"
        mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$machine/dev/pts"
        mount -t tmpfs -o mode=1777 tmpfs "$machine/dev/shm"
        ln -s pts/ptmx "$machine/dev/ptmx"
        ln -s /proc/self/fd "$machine/dev/fd"
        for number in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${number%:*}" "$machine/dev/${number#*:}"; done
        mount --bind "$downloads/apt" "$machine/var/cache/apt/archives"
        mount --bind "$downloads/cargo" "$machine$cargo/registry"
        mount --bind "$downloads/pip" "$machine$home/.cache/pip"
        # A session of its own has no terminal that sudo could ask on.
        exec setsid chroot --userspec="$login" "$machine" "$@"
    ' bash "$machine" "$2" "$home" "$cargo" "$work/downloads" \
        env -i --default-signal=INT,QUIT PATH="$path" HOME="$home" ${share_build:+CARGO_HOME="$cargo"} USER="$2" LANG=C.UTF-8 "${network[@]}" \
        bash -c 'cd /srv/impasto && eval "$1"' bash "$3"
}

# try NAME LOGIN COMMAND: one line of the table. What it prints goes to a log, and the end of it here if it fails.
table=() failed=0
try() {
    local result=passed log=${3#tools/} picture=$work/$1/srv/impasto/output.png
    log=${log%%.*}
    case $3 in *--long) log+=-long ;; esac
    log=${out:-$work}/$1-$log.log
    begin "$3, as $2 ($log)"
    if ! inside_of "$1" "$2" "$3" >"$log" 2>&1; then
        result=FAILED
    elif [[ $3 = tools/run.sh* ]]; then
        if ! grep -qx output.png "$log" || [ ! -s "$picture" ]; then
            result='FAILED: no picture'
        elif [ -n "$out" ]; then
            cp "$picture" "$out/$1.png"
        fi
    fi
    if [ "$result" != passed ]; then
        tail -n 300 "$log"
        failed=1
    fi
    # What all test programs said together.
    if [[ $3 = tools/test.sh* ]]; then
        awk '/^test result: / { passed += $4; failed += $6; ignored += $8 }
            END { printf "%d passed, %d failed, %d skipped\n", passed, failed, ignored }' "$log"
    fi
    table+=("$(printf '%-70s %-8s %7s  %s' "$3" "$2" $((EPOCHSECONDS - begun)) "$result")")
    took "$result"
}

base=$work/base
mapfile -t network < <(variables)
mkdir -p "$work/downloads/apt"
begin "a fresh Debian ($release)"
make_base
cp -a "$base/var/cache/apt/archives/." "$work/downloads/apt/"
took
begin "two machines like that, one with a user and sudo"
make_machine root
make_machine user
took

for command in "${commands[@]}"; do try root root "$command"; done
[ -z "$long" ] || try root root "${commands[-1]} --long"
if [ -n "$share_build" ] && [ -d "$work/root/srv/impasto/target" ]; then
    mv "$work/root/srv/impasto/target" "$work/user/srv/impasto/"
    chroot "$work/user" chown -R painter: /srv/impasto/target
fi
for command in "${commands[@]}"; do try user painter "$command"; done

printf '\n%-70s %-8s %7s  %s\n' command as seconds result
printf '%s\n' "${table[@]}"
exit $failed
