#!/bin/sh
# Fuzzing with coverage of all targets in fuzz/, or of those named, for so many seconds each.
#
#   tools/fuzz.sh SECONDS [TARGET...]
#
# What is found new stays in fuzz/corpus, what fails in fuzz/artifacts; fuzz/seeds is in the repository.
set -eu
cd "$(dirname "$0")/.."
seconds=$1
shift
toolchain=nightly
if ! cargo "+$toolchain" fuzz --version >/dev/null 2>&1; then
    echo "fuzz: left out with coverage: it needs Rust $toolchain and cargo-fuzz" >&2
    echo "fuzz: (rustup toolchain install $toolchain; cargo install --locked cargo-fuzz)" >&2
    exit 0
fi
for target in ${*:-$(cargo "+$toolchain" fuzz list)}; do
    mkdir -p "fuzz/corpus/$target" "fuzz/seeds/$target"
    echo "fuzz: $target"
    cargo "+$toolchain" fuzz run "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
        -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1
done
