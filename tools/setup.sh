#!/bin/sh
# Installs what frontdesk needs on Debian 12, or says exactly what is missing.
#
#   tools/setup.sh build   compilers and libraries
#   tools/setup.sh vms     the same, and what boots real VMs, a browser, and promtool, in target/promtool
#   tools/setup.sh lint    as build, and what looks at the dependencies
#   tools/setup.sh deb     as build, and what makes the Debian package
#   tools/setup.sh sim     as build, and SimSo, which the simulator is compared with, in target/simso
#   tools/setup.sh python  as build, and what the Python package is tested with, in target/python
#
# Idempotent: what is there is left alone. Adds the bookworm-backports suite for QEMU 10 if the packages known
# so far have no QEMU that is new enough.
set -eu

build_packages="build-essential clang-14 libelf-dev zlib1g-dev pkg-config"
vm_packages="chromium chromium-driver iproute2 kmod e2fsprogs xfsprogs fio mmdebstrap dpkg-dev openssh-client"
deb_packages="dpkg-dev"
cargo_deb=3.8.0
cargo_deny=0.20.2
sim_packages="python3-venv"
simso="simso==0.8.5 SimPy==2.3.1 numpy"
simso_venv=$(dirname "$0")/../target/simso
python_tests="ansible-core==2.18.19 maturin==1.16.0 numpy==2.4.6 pandas==3.1.1 pyarrow==26.0.1 ray==2.60.0 pytest==9.2.0 mypy==2.4.1 nbclient==0.11.0 \
    nbformat==5.11.1 ipykernel==7.4.0 matplotlib==3.11.2 psutil==7.2.2"
python_venv=$(dirname "$0")/../target/python
promtool=$(dirname "$0")/../target/promtool/promtool
qemu_packages="qemu-system-x86 qemu-utils"
qemu_least=9.2 # the plugin interface that the QEMU plugin uses
backports=/etc/apt/sources.list.d/frontdesk-backports.sources

say() { printf 'setup: %s\n' "$*" >&2; }

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

qemu_is_new_enough() {
    command -v qemu-storage-daemon >/dev/null || return
    version=$(qemu-system-x86_64 --version 2>/dev/null | sed -n 's/.*version \([0-9.]*\).*/\1/p')
    [ -n "$version" ] && [ "$(printf '%s\n%s\n' "$qemu_least" "$version" | sort -V | head -n 1)" = "$qemu_least" ]
}

# The mirror that this machine uses already.
debian_mirror() {
    sed -n 's/^URIs: *\([^ ]*\).*/\1/p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -n 1 | grep . ||
        sed -n 's/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\) bookworm main.*/\2/p' /etc/apt/sources.list 2>/dev/null | head -n 1
}

target=${1:-}
case "$target" in
build | lint) packages=$build_packages qemu=no ;;
vms) packages="$build_packages $vm_packages" qemu=yes ;;
deb) packages="$build_packages $deb_packages" qemu=no ;;
sim | python) packages="$build_packages $sim_packages" qemu=no ;;
*) say "usage: tools/setup.sh build|vms|lint|deb|sim|python"; exit 2 ;;
esac

missing=
for package in $packages; do
    installed "$package" || missing="$missing $package"
done
need_qemu=no
if [ $qemu = yes ] && ! qemu_is_new_enough; then need_qemu=yes; fi

rust=there
command -v cargo >/dev/null || rust=missing

wanted="$missing"
[ $need_qemu = yes ] && wanted="$wanted $qemu_packages (>= $qemu_least)"
if [ -n "$wanted" ] && { [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; }; then
    say "missing:$wanted"
    say "Run this as root on Debian 12, or install these packages by hand."
    unfinished=yes
fi
if [ $rust = missing ]; then
    say "missing: Rust. Install rustup (https://rustup.rs); the version in rust-toolchain.toml follows by itself."
    unfinished=yes
fi
[ "${unfinished:-no}" = no ] || exit 1

# Tools that work for a moment each: the time it takes to make them fast is never won back.
install_tool() {
    say "installing: $1 $2"
    CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=256 CARGO_PROFILE_RELEASE_OPT_LEVEL=0 \
        cargo install --locked --quiet "$1@$2" >&2
}

install_cargo_tools() {
    if [ "$target" = deb ] && [ "$(cargo deb --version 2>/dev/null)" != "cargo-deb $cargo_deb" ]; then
        install_tool cargo-deb "$cargo_deb"
    fi
    if [ "$target" = lint ] && [ "$(cargo deny --version 2>/dev/null)" != "cargo-deny $cargo_deny" ]; then
        install_tool cargo-deny "$cargo_deny"
    fi
}

# Without it everything else works; the tests that need it fail, unless it may be missing.
install_simso() {
    if [ "$target" = sim ] && ! "$simso_venv/bin/python" -c "import simso" 2>/dev/null; then
        say "installing: $simso in target/simso"
        # shellcheck disable=SC2086 # a list of words
        { /usr/bin/python3 -m venv --clear "$simso_venv" && "$simso_venv/bin/pip" install --quiet $simso; } >&2 || {
            rm -rf "$simso_venv"
            say "SimSo could not be installed: the comparison with it fails, unless FRONTDESK_ALLOW_MISSING names simso"
        }
    fi
}

# Of Debian's Prometheus, which would start a server, only the program that tells when alerts fire. Without it
# everything else works.
install_promtool() {
    if [ "$target" = vms ] && ! command -v promtool >/dev/null && [ ! -x "$promtool" ]; then
        say "installing: promtool in target/promtool"
        folder=$(mktemp -d)
        # So that apt's own user, which downloads, may write there.
        chown _apt "$folder" 2>/dev/null || true
        mkdir -p "$(dirname "$promtool")"
        {
            { apt-cache show prometheus >/dev/null 2>&1 || apt-get update -q; } &&
                (cd "$folder" && apt-get download -q prometheus &&
                    dpkg-deb --fsys-tarfile prometheus_*.deb | tar x ./usr/bin/promtool) &&
                mv "$folder/usr/bin/promtool" "$promtool"
        } >&2 || say "promtool could not be installed: the trial of the alerts fails, unless" \
            "FRONTDESK_ALLOW_MISSING names promtool"
        rm -rf "$folder"
    fi
}

# Made anew if what is wanted has changed.
install_python() {
    if [ "$target" = python ] && [ "$(cat "$python_venv/wanted" 2>/dev/null)" != "$python_tests" ]; then
        say "installing: $python_tests in target/python"
        # shellcheck disable=SC2086 # a list of words
        { /usr/bin/python3 -m venv --clear "$python_venv" && "$python_venv/bin/pip" install --quiet $python_tests; } >&2 || {
            say "these could not be installed from PyPI: see above, put it right, and run this again"
            exit 1
        }
        printf '%s' "$python_tests" >"$python_venv/wanted"
    fi
}

if [ -z "$wanted" ]; then
    install_cargo_tools
    install_simso
    install_promtool
    install_python
    exit 0
fi
say "installing:$wanted"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q >&2
if [ -n "$missing" ]; then
    # shellcheck disable=SC2086 # a list of words
    apt-get install -q -y --no-install-recommends $missing >&2
fi
if [ $need_qemu = yes ]; then
    if ! apt-cache madison qemu-system-x86 | grep -q bpo12; then
        mirror=$(debian_mirror)
        if [ -z "$mirror" ]; then
            say "no Debian mirror found in /etc/apt: add the suite bookworm-backports by hand"
            exit 1
        fi
        say "adding the suite bookworm-backports in $backports"
        cat >"$backports" <<EOF
Types: deb
URIs: $mirror
Suites: bookworm-backports
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
EOF
        apt-get update -q >&2
    fi
    # shellcheck disable=SC2086 # a list of words
    apt-get install -q -y --no-install-recommends -t bookworm-backports $qemu_packages >&2
    qemu_is_new_enough || { say "QEMU is still older than $qemu_least"; exit 1; }
fi
install_cargo_tools
install_simso
install_promtool
install_python
