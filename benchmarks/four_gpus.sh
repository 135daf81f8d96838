#!/usr/bin/env bash
# The start document's machine in one call: the 70B shape in FP8 over four GPUs, a whole 1B draft on each or one split
# over all four; acceptance 0.78 (each draft, if those before it were kept) and 4.9 tokens a pass.
#   benchmarks/four_gpus.sh [FOLDER]     results and logs go to FOLDER, default benchmarks/results
#   MODEL=… DRAFT=… BENCH_ARGS='--device cpu …' SMALL='--hidden 64 --vocab 512' BATCHES=1,4 KS=2 BEST=2 OUTPUT_LEN=16 benchmarks/four_gpus.sh   to try it anywhere
# Each part has its own time limit and none stops the others; about nine minutes on four H200.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-benchmarks/results}
mkdir -p "$out"
export PYTHONPATH=src:tests:benchmarks${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
python=${PYTHON:-python3} batches=${BATCHES:-1,8,32,64,128} ks=${KS:-3,5,7} best=${BEST:-5,7} length=${OUTPUT_LEN:-256}
ranks=${RANKS:-4}
read -ra extra <<<"${BENCH_ARGS:---quantization fp8 --quantize-draft-lm-head}"
pair=(--model "${MODEL:-llama-3.1-70b}" --draft "${DRAFT:-llama-3.2-1b}" --load-format dummy --output-len "$length"
      --tensor-parallel-size "$ranks")

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
    part "$1" "$2" "$python" -m paceline.cli bench offline "${pair[@]}" "${extra[@]}" --out "$out/$1.json" "${@:3}"
}

part four-gpus-collectives 60 "$python" benchmarks/collectives.py --ranks "$ranks" ${SMALL:-} --out "$out/collectives-$ranks.json"
bench "h200x$ranks-70b-draft1" 200 --draft-tensor-parallel-size 1 --synthetic-acceptance 0.78 \
    --batch "$batches" -k "none,0,$ks"
bench "h200x$ranks-70b-draft$ranks" 120 --draft-tensor-parallel-size "$ranks" --synthetic-acceptance 0.78 \
    --batch "$batches" -k "$best"
bench "h200x$ranks-70b-length-4.9" 100 --draft-tensor-parallel-size 1 --synthetic-acceptance-length 4.9 \
    --batch 1 -k "${best##*,}"
bench "h200x$ranks-70b-prefill" 60 --draft-tensor-parallel-size 1 --batch 1 --input-len "${INPUT_LEN:-1024}" -k "${ks%%,*}"
