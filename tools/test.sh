#!/bin/sh
# Runs all tests, and says in the end which of them failed, and which did not run, and why.
#
#   tools/test.sh          all of them
#   tools/test.sh GROUP    one group only, as the lines that it says begin
#
# Trials that run wholly inside a VM, with a kernel of its own, disturb nobody, and wait as much as they
# compute: so two groups run at a time.
#
# What a test needs and this machine lacks is a failure, unless the environment variable
# FRONTDESK_ALLOW_MISSING names it (crates/testing/src/left_out.rs has the names).
set -u
cd "$(dirname "$0")/.."
said=$PWD/target/tests
export FRONTDESK_LEFT_OUT="$said/left-out"

# Each of these is a test program that does so, and a group. What takes longest comes first.
inside="libvirt host_v2 host_scx host_kvm package kvm"

# All but those, which Cargo wants by name.
others() {
    # shellcheck disable=SC2086 # a list of words
    cargo metadata --locked --no-deps --format-version 1 | python3 -c '
import json, sys
targets = [target for package in json.load(sys.stdin)["packages"] for target in package["targets"]]
tests = {target["name"] for target in targets if target["kind"] == ["test"]}
inside = set(sys.argv[1:])
if inside - tests:
    sys.exit(f"tools/test.sh: there are no such tests: {inside - tests}")
print(*(f"--test={name}" for name in sorted(tests - inside)))' $inside
}

if [ $# = 1 ]; then
    case $1 in
    others) select=$(others) && select="--lib --bins $select" || exit ;;
    documentation) select=--doc ;;
    *) select=--test=$1 ;;
    esac
    mkdir -p "$said"
    touch "$said/$1.failed"
    # shellcheck disable=SC2086 # a list of words
    { cargo test --release --workspace --locked --no-fail-fast $select 2>&1 && rm "$said/$1.failed"; } |
        tee "$said/$1" | sed -u "s/^/$1: /"
    [ ! -e "$said/$1.failed" ]
    exit
fi

rm -rf "$said"
mkdir -p "$said"
: >"$FRONTDESK_LEFT_OUT"
# Compiled by all at once, they would wait for each other.
cargo test --release --workspace --locked --no-run || exit
# shellcheck disable=SC2086 # a list of words
printf '%s\n' others $inside documentation | xargs -n 1 -P 2 tools/test.sh
status=$?

# Those that only run by name, each with the file that it is in.
for group in others $inside documentation; do
    awk '/^ *Running / { file = $2 == "unittests" ? $3 " " $4 : $2 }
         /^ *Doc-tests / { file = "documentation of " $2 }
         /^test .* \.\.\. ignored/ {
             sub(/^test /, ""); sub(/ \.\.\. ignored,? ?/, ": runs by name only, with --ignored; "); sub(/; $/, "")
             print file ": " $0
         }' "$said/$group" >>"$FRONTDESK_LEFT_OUT"
done
echo
if [ -s "$FRONTDESK_LEFT_OUT" ]; then
    echo "Not run, $(sort -u "$FRONTDESK_LEFT_OUT" | wc -l):"
    sort -u "$FRONTDESK_LEFT_OUT" | sed 's/^/  /'
else
    echo "All tests have run."
fi
for failed in "$said"/*.failed; do
    [ -e "$failed" ] || continue
    echo "Failed in ${failed%.failed}:"
    grep '^test .* FAILED' "${failed%.failed}" | sed 's/^/  /'
done
exit "$status"
