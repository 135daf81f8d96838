#!/usr/bin/env bash
# Paceline with and without speculation against vLLM's CPU build, same target, in turns: see README.md here.
#   serve_vs_vllm.sh VLLM_PYTHON PROMPTS.jsonl
set -euo pipefail
VLLM_PYTHON=${1:?the python of the environment that has vLLM}
PROMPTS=${2:?prompts, JSONL with category and turns}
ROOT=$(cd "$(dirname "$0")/../.." && pwd)
PYTHON=${PYTHON:-$ROOT/.venv/bin/python}
LOADS=${LOADS:-1,2,4,8}
SEEDS=${SEEDS:-0,1}
MAX_TOKENS=${MAX_TOKENS:-128}
DTYPE=${DTYPE:-float32}
VLLM_SPECULATION=${VLLM_SPECULATION:-draft}
OUT=${OUT:-$(realpath --relative-to=. "$ROOT/benchmarks/results/serve-vs-vllm")} # reports quote it: no path of this machine
PORT=${PORT:-8461}
PATIENCE=${PATIENCE:-1200} # vLLM compiles the model when it first sees it
LENGTH=2048

[ ! -e "$OUT" ] || { echo "$OUT exists: move it away, or set OUT." >&2; exit 2; }
folder_of() { "$PYTHON" -c "from paceline.hub.resolve import resolve; print(resolve('$1'))"; }
TARGET=$(folder_of smollm2-135m-instruct)
DRAFT=$(folder_of smollm2-135m-instruct-draft)
LOGS=$(mktemp -d)
servers=()
stop() { # vLLM's processes may outlive a polite request
  kill "${servers[@]}" 2>/dev/null || true
  for _ in $(seq 20); do [ -n "$(jobs -r)" ] || return 0; sleep 1; done
  for server in "${servers[@]}"; do pkill -9 -P "$server" || true; kill -9 "$server" 2>/dev/null || true; done
}
trap stop EXIT

wait_for() { # name, port, process
  for _ in $(seq "$PATIENCE"); do
    curl -sf -o /dev/null "http://127.0.0.1:$2/v1/models" && return
    kill -0 "$3" 2>/dev/null || { echo "$1 ended:" >&2; tail -30 "$LOGS/$1.log" >&2; exit 1; }
    sleep 1
  done
  echo "$1 did not answer in $PATIENCE tries, a second apart; its log is $LOGS/$1.log" >&2
  exit 1
}
# One after the other: Paceline measures at its start what steps cost, and needs the machine for that.
"$PYTHON" -m paceline.cli serve smollm2-135m-instruct --speculative-model smollm2-135m-instruct-draft \
  --dtype "$DTYPE" --max-model-len $LENGTH --port "$PORT" > "$LOGS/paceline.log" 2>&1 &
servers+=($!)
wait_for paceline "$PORT" "${servers[0]}"

case $VLLM_SPECULATION in
  draft) config=(--speculative-config "{\"method\": \"draft_model\", \"model\": \"$DRAFT\", \"num_speculative_tokens\": 5}") ;;
  ngram) config=(--speculative-config '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}') ;;
  none) config=() ;;
  *) echo "VLLM_SPECULATION is draft, ngram or none." >&2; exit 2 ;;
esac
VLLM_CPU_NUM_OF_RESERVED_CPU=0 "$VLLM_PYTHON" -m vllm.entrypoints.openai.api_server --model "$TARGET" --served-model-name smollm2-135m-instruct \
  --dtype "$DTYPE" --max-model-len $LENGTH --gpu-memory-utilization 0.25 --host 127.0.0.1 --port $((PORT + 1)) \
  "${config[@]}" > "$LOGS/vllm.log" 2>&1 &
servers+=($!)

wait_for vllm $((PORT + 1)) "${servers[1]}"

"$PYTHON" -m paceline.cli bench serve --url "paceline=http://127.0.0.1:$PORT" \
  --url "vllm ($VLLM_SPECULATION)=http://127.0.0.1:$((PORT + 1))" --speculation on,off \
  --baseline "vllm ($VLLM_SPECULATION)" --prompts "$PROMPTS" --concurrency "$LOADS" --seeds "$SEEDS" \
  --max-tokens "$MAX_TOKENS" ${NUM_PROMPTS:+--num-prompts "$NUM_PROMPTS"} --out "$OUT"
