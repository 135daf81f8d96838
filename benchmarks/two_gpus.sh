#!/usr/bin/env bash
# Everything that two GPUs have to show, in one call: tests on the cards, then the 70B shape with a 1B draft in FP8 over
# two ranks, the draft whole on each and split, against one rank without a draft.
#   benchmarks/two_gpus.sh [FOLDER]      results and logs go to FOLDER, default benchmarks/results
#   MODEL=… DRAFT=… BENCH_ARGS='--device cpu …' SMALL='--hidden 64 --vocab 512' BATCHES=1,4 KS=2 OUTPUT_LEN=16 benchmarks/two_gpus.sh   to try it anywhere
# Each part has its own time limit and none stops the others; each bench of two ranks takes three to four minutes on H200, so a machine lent for less runs them by name (ONLY=…).
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-benchmarks/results}
mkdir -p "$out"
export PYTHONPATH=src:tests:benchmarks${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
python=${PYTHON:-python3} batches=${BATCHES:-1,8,32,64,128} ks=${KS:-3,5} length=${OUTPUT_LEN:-256}
read -ra extra <<<"${BENCH_ARGS:---quantization fp8 --quantize-draft-lm-head}"
pair=(--model "${MODEL:-llama-3.1-70b}" --draft "${DRAFT:-llama-3.2-1b}" --load-format dummy --output-len "$length")

part() { # part NAME SECONDS COMMAND ...: run, keep the log, say how it ended
    local name=$1 limit=$2
    shift 2
    [[ -z ${ONLY:-} || " $ONLY " == *" $name "* ]] || return 0
    timeout "$limit" "$@" >"$out/$name.log" 2>&1
    local status=$?
    echo "$name: exit $status after $SECONDS s in all"
    tail -n 3 "$out/$name.log" | cut -c 1-200
}

bench() { # bench NAME SECONDS ARGUMENT ...
    part "$1" "$2" "$python" -m paceline.cli bench offline "${pair[@]}" "${extra[@]}" --batch "$batches" \
        --out "$out/$1.json" "${@:3}"
}

part two-gpus-tests 150 "$python" -m pytest -q -s -p no:cacheprovider tests/gpu/test_two_gpus.py
part two-gpus-collectives 60 "$python" benchmarks/collectives.py --ranks 2 ${SMALL:-} --out "$out/collectives-2.json"
bench h200x2-70b-tp2-draft1 300 --tensor-parallel-size 2 --draft-tensor-parallel-size 1 \
    --synthetic-acceptance 0.78 -k "0,$ks"
bench h200x2-70b-tp2-draft2 200 --tensor-parallel-size 2 --draft-tensor-parallel-size 2 \
    --synthetic-acceptance 0.78 -k "$ks"
bench h200x2-70b-tp1 120 -k none
