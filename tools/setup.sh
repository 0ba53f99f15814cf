# shellcheck shell=bash
# Installs what a bare machine lacks; sourced by run.sh and test.sh.
#
#   setup COMPONENTS PACKAGE...     a C linker, Rust with these components ("clippy fmt" or ""), these packages of Debian and Ubuntu
#
# What is there and new enough is used as it is. Rust comes from the distribution where that has one new enough, else from rustup.

needed_rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "${BASH_SOURCE[0]}")/../Cargo.toml")

say() { printf '\n== %s\n' "$*"; }

setup() {
    components=$1 packages=("${@:2}")
    local rust=present
    compiles || packages+=(gcc libc6-dev)
    if ! find_rust; then rust=missing; elif ! has_components; then rust=incomplete; fi

    if command -v apt-get >/dev/null; then
        # Without these neither cargo nor rustup trusts any server.
        [ -e "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" ] || packages+=(ca-certificates)
        if [ ${#packages[@]} -gt 0 ] || [ $rust != present ]; then
            find_root
            [ "$root" = none ] || update_lists
            add_rust_packages $rust
            [ ${#packages[@]} -eq 0 ] || install_packages
        fi
    elif ! compiles; then
        echo "a C compiler is missing (gcc or clang, and the headers of libc); there is no apt-get to install it with" >&2
        return 1
    elif [ ${#packages[@]} -gt 0 ]; then
        echo "these are missing, by their names in Debian: ${packages[*]}; install them, or tests will fail" >&2
    fi

    [ $rust = present ] || complete_rust
}

# Whether C programs compile and link: a compiler may be there without the headers of libc.
compiles() {
    local folder status=0
    folder=$(mktemp -d)
    cc -x c - -o "$folder/program" 2>/dev/null <<<$'#include <stdlib.h>\nint main(void) { return 0; }' || status=1
    rm -r "$folder"
    return $status
}

# Whether `cargo` and `rustc` are new enough; a toolchain that rustup would have to download first is not.
new_enough() {
    local tool version
    for tool in cargo rustc; do
        version=$(RUSTUP_AUTO_INSTALL=0 "$tool" --version 2>/dev/null | cut -d ' ' -f 2) || return 1
        { [ -n "$version" ] && printf '%s\n' "$needed_rust" "$version" | sort -VC; } || return 1
    done
}

# Puts a Rust that is new enough first on the PATH of this script: an older one may hide it, and rustup's folder may not be on the PATH.
find_rust() {
    local cargo before=$PATH
    new_enough && return
    while read -r cargo; do
        export PATH="${cargo%/*}:$before"
        new_enough && return
    done < <(type -aP cargo || true; echo "${CARGO_HOME:-$HOME/.cargo}/bin/cargo")
    export PATH=$before
    # rustup's default may be old, and its stable toolchain not.
    if find_rustup && RUSTUP_TOOLCHAIN=stable new_enough; then
        export RUSTUP_TOOLCHAIN=stable
        return
    fi
    return 1
}

has_components() {
    local component
    for component in $components; do
        RUSTUP_AUTO_INSTALL=0 cargo "$component" --version >/dev/null 2>&1 || return 1
    done
}

find_rustup() {
    command -v rustup >/dev/null && return
    [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/rustup" ] && export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
}

# How to become root: `self`, `sudo` or `none`. Without a terminal sudo cannot ask for a password.
find_root() {
    root=none
    if [ "$(id -u)" = 0 ]; then
        root=self
    elif command -v sudo >/dev/null; then
        if sudo -n true 2>/dev/null || { { : </dev/tty; } 2>/dev/null && sudo -v; }; then root=sudo; fi
    fi
}

# sudo drops the environment, and with it how to reach the network.
apt_get() {
    local name command=(env DEBIAN_FRONTEND=noninteractive LC_ALL=C)
    [ "$root" = self ] || command=(sudo "${command[@]}")
    for name in http_proxy https_proxy no_proxy; do
        [ -z "${!name:-}" ] || command+=("$name=${!name}")
    done
    "${command[@]}" apt-get -q -o DPkg::Lock::Timeout=120 "$@"
}

# Lists may be missing or old. apt waits for dpkg's lock itself, but not for that of its lists.
update_lists() {
    local log
    say "apt-get update"
    log=$(mktemp)
    for _ in {1..60}; do
        if apt_get update >"$log" 2>&1; then break; fi
        if ! grep -q 'Could not get lock' "$log"; then
            cat "$log" >&2
            break
        fi
        sleep 2
    done
    rm "$log"
}

# The version of a package that apt would install; empty where there is none.
candidate() { LC_ALL=C apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: //p' | grep -v '(none)' || true; }

# Names of Rust's packages: `cargo`, or with a suffix: browsers need a newer Rust than a stable Debian has, which is `cargo-web`.
rust_family() {
    printf '%s\n' "cargo$1" "rustc$1"
    case " $components " in *' clippy '*) echo "rust$1-clippy" ;; esac
    case " $components " in *' fmt '*) echo "rustfmt$1" ;; esac
}

# Adds to `packages` what Rust needs, by what apt has and not by what the distribution is called.
add_rust_packages() {
    local family package names
    if [ "$1" = incomplete ]; then
        case $(dpkg -S "$(command -v cargo)" 2>/dev/null) in
            cargo-web:*) family=-web ;;
            cargo:*) family="" ;;
            *) return 0 ;;
        esac
        mapfile -t names < <(rust_family "$family")
        packages+=("${names[@]}")
    elif [ "$1" = missing ] && ! find_rustup; then
        for family in "" -web; do
            mapfile -t names < <(rust_family "$family")
            for package in "${names[@]}"; do
                dpkg --compare-versions "$(candidate "$package")" ge "$needed_rust" || continue 2
            done
            packages+=("${names[@]}")
            return
        done
        if [ -n "$(candidate rustup)" ]; then
            packages+=(rustup)
        elif ! command -v curl >/dev/null && ! command -v wget >/dev/null; then
            packages+=(curl)
        fi
    fi
}

install_packages() {
    if [ "$root" = none ]; then
        local advice="apt-get update && apt-get install -y --no-install-recommends ${packages[*]}"
        # Without lists nobody knows which packages of Rust there are.
        [ -n "$(candidate gcc)" ] || advice="apt-get update"
        echo "missing: ${packages[*]}; to install them needs root, or a sudo that can ask for a password. Run this as root, then the same again:" >&2
        echo "    $advice" >&2
        return 1
    fi
    say "installing ${packages[*]}"
    apt_get install -y --no-install-recommends "${packages[@]}"
}

# What the packages did not bring, from rustup.
complete_rust() {
    local arguments=(--profile minimal)
    case " $components " in *' clippy '*) arguments+=(--component clippy) ;; esac
    case " $components " in *' fmt '*) arguments+=(--component rustfmt) ;; esac
    hash -r
    find_rust && has_components && return
    if find_rustup; then
        say "installing a Rust toolchain with rustup"
        rustup toolchain install stable "${arguments[@]}"
        export RUSTUP_TOOLCHAIN=stable
    elif ! find_rust; then
        say "installing Rust with rustup into ${CARGO_HOME:-$HOME/.cargo}"
        # One at a time; another that came first leaves nothing to do.
        (
            flock 9 || true
            find_rust || install_rustup "${arguments[@]}"
        ) 9<"$HOME"
    fi
    if ! find_rust || ! has_components; then
        echo "there is still no Rust $needed_rust or later${components:+ with $components}; https://rustup.rs installs it" >&2
        return 1
    fi
}

install_rustup() {
    local installer
    installer=$(mktemp)
    if command -v curl >/dev/null; then
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs -o "$installer"
    elif command -v wget >/dev/null; then
        wget --https-only -qO "$installer" https://sh.rustup.rs
    else
        echo "rustup's installer needs curl or wget" >&2
        return 1
    fi
    # An older Rust on the PATH stays where it is.
    RUSTUP_INIT_SKIP_PATH_CHECK=yes sh "$installer" -y --no-modify-path --default-toolchain stable "$@"
    rm "$installer"
}
