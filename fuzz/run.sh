#!/usr/bin/env bash
# run.sh SECONDS OUT [TARGET...]: runs the targets (all without names) side by side, one process each, for so many seconds. OUT keeps the
# corpus (a second call goes on from it), the artifacts of what was found, and the logs. One line a target is printed at the end.
# LOCKSTEP_FUZZ_BINARY names the binary where it is not `all` beside this script; LOCKSTEP_FUZZ_JOBS bounds how many run at a time.
set -euo pipefail
seconds=${1:?SECONDS}
out=${2:?OUT}
shift 2
here=$(cd "$(dirname "$0")" && pwd)
binary=${LOCKSTEP_FUZZ_BINARY:-$here/all}
seeds=$here/seeds
mkdir -p "$out"
out=$(cd "$out" && pwd)
if [ ! -d "$seeds" ]; then
    seeds=$out/seeds
    LOCKSTEP_FUZZ_SEEDS=$seeds "$binary" >/dev/null 2>&1
fi
if [ $# = 0 ]; then
    # Without a target the binary lists them and exits with 2.
    mapfile -t names < <("$binary" 2>/dev/null || true)
    set -- "${names[@]}"
fi

scratch=$(mktemp -d /dev/shm/lockstep-fuzz-run-XXXXXX 2>/dev/null || mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:symbolize=0:${ASAN_OPTIONS:-}

one() {
    local target=$1
    mkdir -p "$out/corpus/$target" "$out/artifacts/$target" "$out/logs" "$scratch/$target"
    # Fork mode goes on behind a finding.
    (
        cd "$scratch/$target"
        LOCKSTEP_FUZZ_TARGET=$target TMPDIR=$scratch/$target "$binary" \
            -fork=1 -ignore_crashes=1 -ignore_timeouts=1 -ignore_ooms=1 \
            -max_total_time="$seconds" -timeout=1 -rss_limit_mb=1024 -malloc_limit_mb=1024 -max_len=65536 \
            -print_final_stats=1 -dict="$here/all.dict" -artifact_prefix="$out/artifacts/$target/" \
            "$out/corpus/$target" "$seeds/$target" >"$out/logs/$target.log" 2>&1 || true
    )
    rm -rf "${scratch:?}/$target"
}

line() {
    local target=$1 last found
    last=$(grep -aE '^#[0-9]+: cov:' "$out/logs/$target.log" | tail -1 || true)
    found=$(find "$out/artifacts/$target" -type f | sed -E 's#.*/##; s#-.*##' | sort | uniq -c | awk '{printf "%s%s %s", sep, $1, $2; sep=", "}')
    awk -v target="$target" -v last="$last" -v found="${found:-nothing}" 'BEGIN {
        split(last, word, " ")
        executions = word[1]; gsub(/[#:]/, "", executions)
        printf "%-18s executions %10s  coverage %6s  found %s\n", target, executions, word[3], found
    }'
}

running=0
for target in "$@"; do
    one "$target" &
    running=$((running + 1))
    if [ -n "${LOCKSTEP_FUZZ_JOBS:-}" ] && [ "$running" -ge "$LOCKSTEP_FUZZ_JOBS" ]; then
        wait -n
        running=$((running - 1))
    fi
done
wait
for target in "$@"; do line "$target"; done
