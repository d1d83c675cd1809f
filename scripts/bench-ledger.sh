#!/usr/bin/env bash
# All 40 ledger problems, dense and under three budgets: batches of 1, 2 and 4, a bench killed at three points and gone on with, and two
# shards must come to the same rows, bit for bit. Minutes on two cores with a release build.
#
#   scripts/bench-ledger.sh [LOCKSTEP] [OUT] [extra flags of `bench run`, e.g. --rule-set hf --device cuda --deterministic]
set -euo pipefail
lockstep=${1:-target/release/lockstep}
out=${2:-$(mktemp -d)}
shift $(($# < 2 ? $# : 2))
arms=(dense triattention-b512-d64 triattention-b768-d64 triattention-b1280-d64)
bench() { # NAME flags...
  local name=$1
  shift
  "$lockstep" bench run --dataset ledger --model ledger --compare dense,triattention \
    --sweep budget=512,768,1280:divide=64 --max-new-tokens 2000 --out "$out/$name" "$@" > "$out/$name.txt"
}
same() { # LEFT RIGHT
  for arm in "${arms[@]}"; do
    "$lockstep" diff "$out/$1/$arm" "$out/$2/$arm" > "$out/diff.txt" || { cat "$out/diff.txt"; echo "FAIL $1 $2 $arm"; exit 1; }
  done
  echo "same: $1 $2"
}
mkdir -p "$out"
echo "into $out"
for batch in 1 2 4; do
  bench "batch$batch" --batch "$batch" "$@"
  [ "$batch" = 1 ] || same batch1 "batch$batch"
done
cat "$out/batch1.txt"
# Killed in the dense run, in the first budget and in the last one.
resume=()
for point in dense:7 triattention-b512-d64:11 triattention-b1280-d64:23; do
  cache=$out/killed/responses/${point%:*}.jsonl
  bench killed --batch 2 "${resume[@]}" "$@" 2> "$out/killed.err" &
  # The shell that runs the function; its only child is the bench.
  shell=$!
  until [ "$(cat "$cache" 2> /dev/null | wc -l)" -gt "${point#*:}" ]; do
    kill -0 "$shell" 2> /dev/null || { cat "$out/killed.err"; echo "FAIL: ended before $point"; exit 1; }
    sleep 0.05
  done
  kill -KILL "$(pgrep -P "$shell")"
  wait "$shell" || true
  echo "killed at $point"
  resume=(--resume)
done
bench killed --batch 2 --resume "$@"
same batch1 killed
for shard in 0 1; do bench "shard$shard" --batch 4 --shard "$shard/2" "$@"; done
"$lockstep" bench merge "$out/shard0" "$out/shard1" --out "$out/merged" > "$out/merged.txt"
same batch1 merged
if "$lockstep" bench merge "$out/shard0" --out "$out/missing" 2> "$out/missing.txt"; then echo "FAIL: missing rows not found"; exit 1; fi
if "$lockstep" bench merge "$out/shard0" "$out/shard1" "$out/shard1" --out "$out/twice" 2> "$out/twice.txt"; then
  echo "FAIL: doubled rows not found"
  exit 1
fi
cat "$out/missing.txt" "$out/twice.txt"
echo "all the same"
