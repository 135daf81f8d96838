#!/usr/bin/env bash
# Everything that one GPU has to show, in one call: tests on the card, then the 70B shape with a 1B draft in FP8.
#   benchmarks/one_gpu.sh [FOLDER]      results and logs go to FOLDER, default benchmarks/results
# Each part has its own time limit and none stops the others; about ten minutes on an H200.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-benchmarks/results}
mkdir -p "$out"
export PYTHONPATH=src:tests:benchmarks${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
pair=(--model llama-3.1-70b --draft llama-3.2-1b --quantization fp8 --quantize-draft-lm-head --load-format dummy)

part() { # part NAME SECONDS COMMAND ...: run, keep the log, say how it ended
    local name=$1 limit=$2
    shift 2
    timeout "$limit" "$@" >"$out/$name.log" 2>&1
    local status=$?
    echo "$name: exit $status"
    tail -n 3 "$out/$name.log" | cut -c 1-200
}

part gpu-tests-captured 240 python3 -m pytest -q -p no:cacheprovider tests/model/test_captured.py tests/model/test_engine_pitfalls.py
part gpu-tests-kernels 120 python3 -m pytest -q -p no:cacheprovider tests/kernels
part gpu-tests-memory 120 python3 -m pytest -q -s -p no:cacheprovider tests/gpu
part gpu-70b 280 python3 -m paceline.cli bench offline "${pair[@]}" --synthetic-acceptance 0.78 \
    --batch 1,8,32,64,128 -k none,0,1,2,3,5,7,adaptive --out "$out/h200-70b-1b-fp8.json"
part gpu-70b-length 120 python3 -m paceline.cli bench offline "${pair[@]}" --synthetic-acceptance-length 4.9 \
    --batch 1 -k 5,7 --out "$out/h200-70b-1b-fp8-length-4.9.json"
part gpu-70b-prefill 120 python3 -m paceline.cli bench offline "${pair[@]}" --batch 8 --input-len 2048 --output-len 8 -k 0 \
    --max-num-batched-tokens 16384 --out "$out/h200-70b-prefill.json"
