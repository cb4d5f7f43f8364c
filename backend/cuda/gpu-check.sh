#!/bin/sh
# What there is to find out about Octet on a machine with a GPU: `make gpu-check`
# packs this file, binaries and a corpus, which need neither Go nor a compiler
# there. Each part writes files into $OUT and a line into summary.txt; a part that
# fails does not stop the next one. There is a table of what was measured beside what
# was asked for, table.md, of all parts that $OUT has results of: it is made anew after
# each, so that whoever is stopped has what there is. The status is 1 if a part failed,
# or if there is no GPU that can be used; a target that was missed is in the table.
#
#	tar xzf gpu-check.tar.gz && sh gpu-check/gpu-check.sh
#
# OUT is where files go (gpu-check-results), BACKEND what is checked (cuda:0), DATA
# what the curves are trained on (corpus.txt), GPUS how many GPUs from there on the
# tests may take (1). PEERS is a folder with peer_torch.py and probe_numerics.py, and
# PYTHON what runs them (python3). The doctor is asked in any case. MINUTES is when to
# end: what is running then is stopped, what comes after is left out, and a later call
# with the same OUT can bring it. PARTS is which of these, in this order, with estimates
# of their minutes:
#
#	conformance bench products          6
#	steps outside                       9
#	tests parity                        9
#	curves                              4
#	peers                               9, only with PEERS
#	sanitizer                           9, only with compute-sanitizer
#
# So each line is for a call with MINUTES=9, where a command may take ten minutes.
#
# TRIAL=1 tries this script, in a minute or two of a processor behind stand-ins: tiny
# models and shapes, whose figures mean nothing, as the table says.
set -u
start=$(date +%s)
here=$(cd "$(dirname "$0")" && pwd)
octet=$here/octet
results=${OUT:-gpu-check-results}
BACKEND=${BACKEND:-cuda:0}
DATA=${DATA:-$here/corpus.txt}
PARTS=${PARTS:-conformance bench products steps outside tests parity curves peers sanitizer}
PYTHON=${PYTHON:-python3}
if [ -n "${TRIAL:-}" ]; then
	tiny="model.layers=1 data.seq=32 train.micro_batch=1 train.accumulate=1 data.val_bytes=2000"
	casts=64x64 layers=64x64x64 parameters=4k seconds=0 bursts=2x rounds=2x
	small="--model tiny $tiny" one="--model tiny $tiny" seven="--model tiny $tiny" kernels="--model tiny $tiny" curve="--model tiny $tiny"
	outside="model.preset=tiny $tiny"
	short="--model tiny $tiny" steps=4 profiled=6 long=4 seeds=1 tests="-test.run TestCopies|TestLaunch|TestRun$"
	peer=--dry-run
else
	# Llama-7B: 4,096 tokens through q, up and down. What is bound by memory has more of
	# them: 4,096 would find half of their operands in a cache.
	layers="4096x4096x4096 4096x11008x4096 4096x4096x11008"
	casts="16384x4096 16384x11008" parameters= seconds=5 bursts=30x rounds=20x
	small="--model 124m train.micro_batch=16"
	one="--model 1b train.micro_batch=4"
	seven="--model llama2-7b model.layers=8 train.micro_batch=1"
	outside="model.preset=llama2-7b model.layers=8 train.micro_batch=1 recipe=fp8-smooth"
	kernels="--model llama2-7b model.layers=2 train.micro_batch=4 data.val_bytes=200000 checkpoint.every=0"
	curve="--model 124m model.vocab=256 data.seq=1024"
	short= steps=50 profiled=20 long=1000 seeds="1 2" tests=
	peer=
fi
mkdir -p "$results" || exit 1
OUT=$(cd "$results" && pwd)
runs=$(mktemp -d) || exit 1
running=
trap 'rm -rf "$runs"' EXIT
# What timeout runs is in a process group of its own, which signals here do not reach.
trap '[ -z "$running" ] || kill "$running"; exit 1' INT TERM
# Functions of NVML stay unresolved where there is none.
unset LD_BIND_NOW
# Dozens of processes run the same kernels: without a cache each would compile them.
[ -n "${XDG_CACHE_HOME:-}${HOME:-}" ] || export XDG_CACHE_HOME="$OUT/cache"

# line NAME TIME VERDICT writes one of the summary.
line() {
	printf '%-28s %6s  %s\n' "$1" "$2" "$3" | tee -a "$OUT/summary.txt"
}

# part NAME SECONDS COMMAND... runs one, if MINUTES leave it ten seconds. What is left
# out is not in the summary: an earlier call may have a result.
parts=0 failed=0 late=0 status=0
part() {
	name=$1 limit=$2
	shift 2
	begin=$(date +%s)
	if [ -n "${MINUTES:-}" ]; then
		left=$((start + 60 * MINUTES - begin))
		if [ $left -lt 10 ]; then
			late=$((late + 1))
			printf '%-28s %6s  %s\n' "$name" - "left out: $MINUTES minutes are over"
			return
		fi
		[ $left -lt "$limit" ] && limit=$left
	fi
	timeout -k 10 "$limit" "$@" >"$OUT/$name.txt" 2>"$OUT/$name.err" &
	running=$!
	wait $running
	status=$?
	running=
	parts=$((parts + 1))
	verdict=ok
	if [ $status -ne 0 ]; then
		failed=$((failed + 1))
		said=$OUT/$name.err
		[ -s "$said" ] || said=$OUT/$name.txt
		verdict="FAILED ($status): $(tail -n 1 "$said")"
		[ $status -eq 124 ] && verdict="FAILED: no end after $limit s"
	fi
	line "$name" "$(($(date +%s) - begin)) s" "$verdict"
	"$here/gpucheck" "$OUT" >/dev/null 2>&1
}

# train NAME SECONDS ARGUMENT... is a part that trains, and keeps the run's figures.
train() {
	run=$runs/$1
	part "$@" --out "$run"
	for file in metrics.jsonl timing.jsonl trace.json run.log; do
		[ -f "$run/$file" ] && cp "$run/$file" "$OUT/$name-$file"
	done
	rm -rf "$run" # checkpoints are large
}

# within FOLDER NAME SECONDS COMMAND... is a part that runs there, with the GPU that is
# checked as the first.
within() {
	folder=$1 name=$2 limit=$3
	shift 3
	part "$name" "$limit" env -C "$folder" CUDA_VISIBLE_DEVICES="$visible" OCTET_TEST_GPUS="${GPUS:-1}" "$@"
}

wanted() {
	case " $PARTS " in *" $1 "*) return 0 ;; esac
	return 1
}

# filename spells a backend without the colon.
filename() {
	echo "$1" | tr : -
}

# Tests take the GPUs that they are shown, from the first: those of BACKEND.
first=0
case $BACKEND in cuda:[0-9]*) first=${BACKEND#cuda:} first=${first%%,*} ;; esac
visible=$(echo "${CUDA_VISIBLE_DEVICES:-$(seq -s , 0 63)}" | cut -d , -f "$((first + 1))-")

# Of parts that are run again, the last line counts.
touch "$OUT/summary.txt"
{
	"$octet" version
	echo "commit $(cat "$here/commit" 2>/dev/null || echo unknown)"
	date -u '+run %Y-%m-%dT%H:%M:%SZ'
	[ -z "${TRIAL:-}" ] || echo "TRIAL: tiny models and shapes, whose figures mean nothing"
	if command -v nvidia-smi >/dev/null; then
		nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm --format=csv 2>&1
	else
		echo "nvidia-smi is not in the PATH: doctor.txt says which driver and GPUs there are"
	fi
} | tee "$OUT/versions.txt"
echo

part doctor 60 "$octet" doctor
# The smallest thing that a GPU is needed for; 2 says that it cannot be had.
part probe 120 "$octet" gemm --backend "$BACKEND" --shape 16x16x16
if [ $status -eq 2 ]; then
	echo "gpu-check: no usable GPU here: see $results/doctor.txt; BACKEND=cuda:1 checks another one" | tee -a "$OUT/summary.txt" >&2
	exit 1
fi

if wanted conformance; then
	part conformance 300 "$octet" doctor --backend "$BACKEND"
fi
if wanted bench; then
	part bench-gemm 180 "$octet" bench gemm --backend "$BACKEND" --seconds 0.5 --json $layers
	part bench-quantize 120 "$octet" bench quantize --backend "$BACKEND" --seconds 0.5 --json $casts
	part bench-optimizer 60 "$octet" bench optimizer --backend "$BACKEND" --seconds $seconds --json $parameters
fi
if wanted products; then
	within "$here/tests/cuda" products 180 ./cuda.test -test.run '^$' -test.bench GEMMs -test.benchtime $bursts -layers "$(echo "$layers" | tr ' ' ,)"
fi
if wanted steps; then
	# Recipes that are measured in turns are in memory together: of the larger
	# models, which take up to 38 GB, each has the GPU to itself.
	for recipe in bf16 fp8-smooth fp8-delayed fp8-w3-bf16; do
		part "step-7b-layers-$recipe" 60 "$octet" bench step --backend "$BACKEND" --recipe $recipe --seconds $seconds --json $seven
	done
	# Each kind of op by the GPU's clock at 7B's shapes, and the memory of such a run:
	# one that is profiled does not tell.
	train profile-7b-layers 180 "$octet" train --backend "$BACKEND" --profile --steps $profiled $kernels
	# Attention as GPUs have it that are not Hopper's.
	train profile-7b-layers-mma 180 "$octet" train --backend "$BACKEND,attention=mma" --profile --steps $profiled $kernels
	train memory-7b-layers 120 "$octet" train --backend "$BACKEND" --steps 2 $kernels
	part plan-7b-layers 60 "$octet" plan --backend "$BACKEND" --json $kernels
	for recipe in bf16 fp8-smooth fp8-delayed fp8-w3-bf16; do
		part "step-1b-$recipe" 60 "$octet" bench step --backend "$BACKEND" --recipe $recipe --seconds $seconds --json $one
	done
	part step-124m 60 "$octet" bench step --backend "$BACKEND" --recipe bf16,fp8-w3-bf16,fp8-smooth,fp8-delayed --seconds $seconds --json $small
	train profile 60 "$octet" train --backend "$BACKEND" --profile --steps $profiled $short
fi
if wanted outside; then
	# What of a step passes outside kernels: the step as it is, and with an empty kernel
	# before every call.
	within "$here/tests/cuda" outside 120 ./cuda.test -test.run '^$' -test.bench Outside -test.benchtime $rounds -step "$outside"
fi
if wanted tests; then
	# Go's tests of the bindings, the kernels and the backend, on the real libraries.
	for package in libcuda kernels cuda; do
		within "$here/tests/$package" "tests-$package" 400 "./$package.test" -test.v $tests
	done
	if [ -f "$here/tests/gorgonia/gorgonia.test" ]; then
		within "$here/tests/gorgonia" tests-gorgonia 200 ./gorgonia.test -test.v
	else
		line tests-gorgonia - "left out: packed where there is no cuda.h of CUDA 11.8 or 12"
	fi
fi
if wanted parity; then
	# The same run on both, the losses of every step in metrics.jsonl.
	for recipe in bf16 fp8-delayed fp8-smooth; do
		for device in emu "$BACKEND"; do
			train "parity-$recipe-$(filename "$device")" 120 "$octet" train --backend "$device" --recipe "$recipe" --steps $steps --json $short
		done
	done
fi
if wanted curves; then
	for recipe in bf16 fp8-smooth; do
		for seed in $seeds; do
			train "curve-$recipe-$seed" 180 "$octet" train --backend "$BACKEND" --recipe $recipe --seed $seed --steps $long --data "$DATA" --json $curve
		done
	done
fi
if wanted peers; then
	# The same models and batches as in steps, in the same hour.
	if [ ! -f "${PEERS:-}/peer_torch.py" ]; then
		line peers - "left out: PEERS names no folder with peer_torch.py"
	elif ! "$PYTHON" -c 'import torch' 2>"$OUT/peers.err"; then
		line peers - "left out: $PYTHON has no torch"
	else
		within . peer-7b 300 "$PYTHON" "$PEERS/peer_torch.py" --only attn,train --configs 7b --layers 8 --linears bf16 --budget 240 --out "$OUT/peer-7b.json" $peer
		within . peer-1b 200 "$PYTHON" "$PEERS/peer_torch.py" --only train --configs 1b --batch 4 --linears bf16 --budget 160 --out "$OUT/peer-1b.json" $peer
		within . peer-numerics 300 "$PYTHON" "$PEERS/probe_numerics.py" --budget 240 --out "$OUT/peer-numerics.json" $peer
	fi
fi
if wanted sanitizer; then
	# The kernels' reads and writes beyond what they own, and races in shared memory: in
	# every seventh case of the conformance suite, since each takes tens of times as long.
	# Kernels of cuBLASLt are not ours to mend. Errors that calls return are the tests'
	# business, which have some on purpose.
	PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:/usr/local/cuda/bin
	if command -v compute-sanitizer >/dev/null; then
		for tool in memcheck racecheck; do
			within "$here/tests/cuda" "sanitizer-$tool" 270 compute-sanitizer --tool $tool --error-exitcode 86 --report-api-errors no \
				--kernel-name-exclude kns=cublas,kns=cutlass,kns=gemm,kns=nvjet ./cuda.test -test.v -test.short -test.run '^TestConformance$'
		done
	else
		line sanitizer - "left out: compute-sanitizer is not in the PATH (CUDA toolkit, package cuda-sanitizer-12-8)"
	fi
fi

echo
verdict="all $parts parts ok"
[ $failed -gt 0 ] && verdict="$failed of $parts parts FAILED"
[ $late -gt 0 ] && verdict="$verdict, $late left out for want of time"
line total "" "$verdict"
echo
"$here/gpucheck" "$OUT" || failed=$((failed + 1))
echo "To send back: tar czf results.tgz $results"
[ $failed -eq 0 ]
