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

# The engine, which has no unsafe code of its own but tables of others' (arrayvec, lru): the same events
# twice, in a few cases, for it takes thousands of times as long; and what is counted for people. Properties
# read the environment.
PROPTEST_CASES=${CASES:-4} MIRIFLAGS="-Zmiri-disable-isolation" cargo "+$toolchain" miri test --locked -p frontdesk-engine \
    --test properties the_same_events_give_the_same_actions
cargo "+$toolchain" miri test --locked -p frontdesk-engine --lib explain::log
