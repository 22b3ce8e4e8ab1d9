#!/bin/sh
# Runs all tests, and says in the end which of them failed, and which did not run, and why.
#
#   tools/test.sh          all of them
#   tools/test.sh GROUP    one group only, as the lines that it says begin
#
# Trials that run wholly inside a VM, with a kernel of its own, disturb nobody, and wait as much as they
# compute: so two groups run at a time. Desktops that somebody looks at come last, alone: beside others, an
# emulated one may take minutes until it shows anything.
#
# What a test needs and this machine lacks is a failure, unless the environment variable
# FRONTDESK_ALLOW_MISSING names it (crates/testing/src/left_out.rs has the names).
set -u

# Each of these is a test program that does so, and a group. What takes longest comes first.
inside="host_v2 host_scx host_kvm package kvm"
alone=desktop
groups="others $inside documentation $alone"

# Cargo runs a program of tests by this: only if it is one of the group.
if [ "${1:-}" = --of ]; then
    group=$2
    shift 2
    name=${1##*/}
    name=${name%-*}
    case " $inside $alone " in
    *" $name "*) ;;
    *) name=others ;;
    esac
    [ "$name" = "$group" ] || exit 0
    exec "$@"
fi

cd "$(dirname "$0")/.."
said=$PWD/target/tests
export FRONTDESK_LEFT_OUT="$said/left-out"
# A test says what is wrong by its message; the stack of a test is the same each time.
export RUST_BACKTRACE=0

# Always with all tests: for fewer, Cargo would compile other crates with other features.
if [ $# = 1 ]; then
    case " $groups " in
    *" $1 "*) ;;
    *)
        echo "tools/test.sh: there is no group $1: allowed is $groups" >&2
        exit 2
        ;;
    esac
    mkdir -p "$said"
    touch "$said/$1.failed"
    begun=$(date +%s)
    {
        if [ "$1" = documentation ]; then
            cargo test --release --workspace --locked --no-fail-fast --doc 2>&1
        else
            cargo test --release --workspace --locked --no-fail-fast --lib --bins --tests \
                --config "target.'cfg(all())'.runner = ['$PWD/tools/test.sh', '--of', '$1']" 2>&1
        fi && rm "$said/$1.failed"
    } | tee "$said/$1" | sed -u "s/^/$1: /"
    echo "$1: $(($(date +%s) - begun)) s"
    [ ! -e "$said/$1.failed" ]
    exit
fi

rm -rf "$said"
mkdir -p "$said"
: >"$FRONTDESK_LEFT_OUT"
# Compiled by all at once, they would wait for each other.
cargo test --release --workspace --locked --lib --bins --tests --no-run || exit
# shellcheck disable=SC2086 # a list of words
printf '%s\n' others $inside documentation | xargs -n 1 -P 2 tools/test.sh
status=$?
tools/test.sh "$alone" || status=1

# Those that only run by name, each with the file that it is in.
for group in $groups; do
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
    # The first lines of what each of them said, and the last ones: a VM's console ends with why it failed.
    awk 'function tail(i) {
             if (lines > first + last) print "  ..."
             for (i = lines - last + 1; i <= lines; i++) if (i > first) print "  " kept[i % last]
             lines = 0
         }
         BEGIN { first = 6; last = 20 }
         /^(failures:|test result:|---- )/ { tail(); saying = /^---- / }
         saying && NF { line = substr($0, 1, 400); kept[++lines % last] = line; if (lines <= first) print "  " line }
         END { tail() }' "${failed%.failed}"
done
# Their names last, where nobody has to look for them.
for failed in "$said"/*.failed; do
    [ -e "$failed" ] || continue
    echo "Failed in ${failed%.failed}:"
    grep '^test .* FAILED\|^error: could not compile' "${failed%.failed}" | sed 's/^/  /'
done
exit "$status"
