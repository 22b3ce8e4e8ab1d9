#!/bin/sh
# Runs all tests, and says in the end which of them did not run, and why. Ends as cargo does.
#
# What a test needs and this machine lacks is a failure, unless the environment variable
# FRONTDESK_ALLOW_MISSING names it (crates/testing/src/left_out.rs has the names).
set -u
cd "$(dirname "$0")/.."
mkdir -p target
output=$PWD/target/test-output list=$PWD/target/left-out ended=$PWD/target/test-status
: >"$list"
rm -f "$ended"

{
    FRONTDESK_LEFT_OUT=$list cargo test --release --workspace --locked --no-fail-fast "$@" 2>&1
    echo $? >"$ended"
} | tee "$output"

# Those that only run by name, each with the file that it is in.
awk '/^ *Running / { file = $2 == "unittests" ? $3 " " $4 : $2 }
     /^ *Doc-tests / { file = "documentation of " $2 }
     /^test .* \.\.\. ignored/ {
         sub(/^test /, ""); sub(/ \.\.\. ignored,? ?/, ": runs by name only, with --ignored; "); sub(/; $/, "")
         print file ": " $0
     }' "$output" >>"$list"
echo
if [ -s "$list" ]; then
    echo "Not run, $(sort -u "$list" | wc -l):"
    sort -u "$list" | sed 's/^/  /'
else
    echo "All tests have run."
fi
exit "$(cat "$ended" 2>/dev/null || echo 1)"
