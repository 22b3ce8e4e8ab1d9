#!/bin/sh
# Interprets tests with Miri, which checks every access to memory and, of threads, every order it is told to.
set -eu
cd "$(dirname "$0")/.."
toolchain=nightly
if ! cargo "+$toolchain" miri --version >/dev/null 2>&1; then
    echo "miri: it is not there (rustup toolchain install nightly --component miri --component rust-src)" >&2
    exit 1
fi

# The ring's protocol, in many orders of its two threads; memory shared between processes Miri does not know.
MIRIFLAGS="-Zmiri-many-seeds=0..32" cargo "+$toolchain" miri test --locked -p frontdesk-ring the_protocol_of_a_lane
