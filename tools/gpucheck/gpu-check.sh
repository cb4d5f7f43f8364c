#!/bin/sh
# Checks and measures Octet on a machine with a GPU. `make gpu-check` packs this file,
# binaries and a corpus, so that the machine needs neither Go nor a compiler. Each part
# writes files into $OUT and a line into summary.txt; a failed part does not stop the
# next one. table.md compares the figures of all parts in $OUT with their targets; it is
# written after each part, so that an interrupted run has one. The status is 1 if a part
# failed or no GPU is usable; a missed target is only in the table.
#
#	tar xzf gpu-check.tar.gz && sh gpu-check/gpu-check.sh
#
# OUT is the output folder (gpu-check-results), BACKEND the checked backend (cuda:0), DATA
# the training text of the curves (corpus.txt), GPUS the maximum number of GPUs for tests,
# from BACKEND's (1), RANKS the number of GPUs of part ranks, from BACKEND's (all that the
# doctor lists, at most 8). PEERS is a folder with peer_torch.py and probe_numerics.py, PYTHON
# the interpreter for them (python3). MINUTES is a time limit: the part that runs then is
# stopped, later ones are skipped, and a later call with the same OUT can run them. PARTS
# selects parts, in this order, with estimates in minutes; the doctor always runs:
#
#	conformance bench products          6
#	steps outside                       9
#	tests parity                        9
#	curves                              4
#	ranks                               8, only with two GPUs or more
#	peers                               9, only with PEERS
#	sanitizer                           9, only with compute-sanitizer
#
# So each line suits a call with MINUTES=9, where a command may take ten minutes.
#
# TRIAL=1 tests this script, in a minute or two on a CPU with stand-ins: tiny models and
# shapes, with meaningless figures, as the table says.
set -u
start=$(date +%s)
here=$(cd "$(dirname "$0")" && pwd)
octet=$here/octet
results=${OUT:-gpu-check-results}
BACKEND=${BACKEND:-cuda:0}
DATA=${DATA:-$here/corpus.txt}
PARTS=${PARTS:-conformance bench products steps outside tests parity curves ranks peers sanitizer}
PYTHON=${PYTHON:-python3}
if [ -n "${TRIAL:-}" ]; then
	tiny="model.layers=1 data.seq=32 train.micro_batch=1 train.accumulate=1 data.val_bytes=2000"
	casts=64x64 layers=64x64x64 parameters=4k seconds=0 bursts=2x rounds=2x
	small="--model tiny $tiny" one="--model tiny $tiny" seven="--model tiny $tiny" kernels="--model tiny $tiny" curve="--model tiny $tiny"
	outside="model.preset=tiny $tiny"
	short="--model tiny $tiny" steps=4 profiled=6 long=4 seeds=1 tests="-test.run TestCopies|TestLaunch|TestRun$"
	together="--model tiny model.layers=1 data.seq=32 train.micro_batch=1 data.val_bytes=2000" sizes=1
	peer=--dry-run
else
	# Llama-7B: 4,096 tokens through q, up and down. Memory-bound kernels get more tokens:
	# with 4,096, half of their operands would be in a cache.
	layers="4096x4096x4096 4096x11008x4096 4096x4096x11008"
	casts="16384x4096 16384x11008" parameters= seconds=5 bursts=30x rounds=20x
	small="--model 124m train.micro_batch=16"
	one="--model 1b train.micro_batch=4"
	seven="--model llama2-7b model.layers=8 train.micro_batch=1"
	outside="model.preset=llama2-7b model.layers=8 train.micro_batch=1 recipe=fp8-smooth"
	kernels="--model llama2-7b model.layers=2 train.micro_batch=4 data.val_bytes=200000 checkpoint.every=0"
	curve="--model 124m model.vocab=256 data.seq=1024"
	short= steps=50 profiled=20 long=1000 seeds="1 2" tests=
	together="--model 124m train.micro_batch=4" sizes=1,16,256
	peer=
fi
mkdir -p "$results" || exit 1
OUT=$(cd "$results" && pwd)
runs=$(mktemp -d) || exit 1
running=
trap 'rm -rf "$runs"' EXIT
# timeout runs its command in a process group of its own, which signals to this shell miss.
trap '[ -z "$running" ] || kill "$running"; exit 1' INT TERM
# Without NVML, its functions stay unresolved.
unset LD_BIND_NOW
# Dozens of processes run the same kernels: without a cache each would compile them.
[ -n "${XDG_CACHE_HOME:-}${HOME:-}" ] || export XDG_CACHE_HOME="$OUT/cache"

# line NAME TIME VERDICT writes a line of the summary.
line() {
	printf '%-28s %6s  %s\n' "$1" "$2" "$3" | tee -a "$OUT/summary.txt"
}

# part NAME SECONDS COMMAND... runs a part, if MINUTES leave it ten seconds. Skipped parts
# are not in the summary: an earlier call may have a result.
parts=0 failed=0 late=0 status=0
part() {
	name=$1 limit=$2
	shift 2
	begin=$(date +%s)
	if [ -n "${MINUTES:-}" ]; then
		left=$((start + 60 * MINUTES - begin))
		if [ $left -lt 10 ]; then
			late=$((late + 1))
			printf '%-28s %6s  %s\n' "$name" - "left out: the $MINUTES minutes have passed"
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
		[ $status -eq 124 ] && verdict="FAILED: timeout after $limit s"
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

# within FOLDER NAME SECONDS COMMAND... is a part that runs in a folder, with the checked
# GPU as the first. Tests use the first $gpus.
gpus=${GPUS:-1}
within() {
	folder=$1 name=$2 limit=$3
	shift 3
	part "$name" "$limit" env -C "$folder" CUDA_VISIBLE_DEVICES="$visible" OCTET_TEST_GPUS="$gpus" "$@"
}

wanted() {
	case " $PARTS " in *" $1 "*) return 0 ;; esac
	return 1
}

# filename prints a backend's name without the colon.
filename() {
	echo "$1" | tr : -
}

# Tests use the visible GPUs from the first: BACKEND's.
first=0
case $BACKEND in cuda:[0-9]*) first=${BACKEND#cuda:} first=${first%%,*} ;; esac
visible=$(echo "${CUDA_VISIBLE_DEVICES:-$(seq -s , 0 63)}" | cut -d , -f "$((first + 1))-")

# If a part ran again, its last line counts.
touch "$OUT/summary.txt"
{
	"$octet" version
	echo "commit $(cat "$here/commit" 2>/dev/null || echo unknown)"
	date -u '+run %Y-%m-%dT%H:%M:%SZ'
	[ -z "${TRIAL:-}" ] || echo "TRIAL: tiny models and shapes, with meaningless figures"
	if command -v nvidia-smi >/dev/null; then
		nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm --format=csv 2>&1
	else
		echo "nvidia-smi is not in the PATH: see doctor.txt for the driver and GPUs"
	fi
} | tee "$OUT/versions.txt"
echo

part doctor 60 "$octet" doctor
# The smallest use of a GPU; status 2 means that none is usable.
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
	# Recipes measured in turns share the memory. The larger models take up to 38 GB, so
	# each recipe has the GPU to itself.
	for recipe in bf16 fp8-smooth fp8-delayed fp8-w3-bf16; do
		part "step-7b-layers-$recipe" 60 "$octet" bench step --backend "$BACKEND" --recipe $recipe --seconds $seconds --json $seven
	done
	# Each kind of op by the GPU's clock at 7B's shapes, and the memory of such a run: a
	# profiled run does not report it.
	train profile-7b-layers 180 "$octet" train --backend "$BACKEND" --profile --steps $profiled $kernels
	# Attention by mma.sync, as on GPUs other than Hopper.
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
	# The time of a step outside kernels: a normal step, and one with an empty kernel
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
		line tests-gorgonia - "left out: packed on a machine without cuda.h of CUDA 11.8 or 12"
	fi
fi
if wanted parity; then
	# The same run on both, with the losses of every step in metrics.jsonl.
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
if wanted ranks; then
	# Ranks are processes, one for each GPU, connected by NCCL.
	listed=$(grep -c '✓ GPU [0-9]*:' "$OUT/doctor.txt")
	ranks=${RANKS:-$((listed - first > 8 ? 8 : listed - first))}
	if [ "$ranks" -lt 2 ]; then
		line ranks - "left out: needs two GPUs from $BACKEND on, the doctor lists $listed"
	else
		gpus=$ranks
		# How long the processes of a job take to end after one was killed, or stopped.
		within "$here/tests/cuda" ranks-lost 120 ./cuda.test -test.v -test.run '^TestLostProcess$'
		# The same batches on one GPU and on all.
		train ranks-one 180 "$octet" train --backend "$BACKEND" --recipe bf16 --steps $steps --json $together train.accumulate="$ranks"
		train ranks-all 180 "$octet" train --backend "$BACKEND" --recipe bf16 --steps $steps --json $together train.accumulate=1 --ranks "$ranks"
		# The same with collectives beside the compute.
		train ranks-overlap 180 "$octet" train --backend "$BACKEND,collectives=overlap" --recipe bf16 --steps $steps --json $together train.accumulate=1 --ranks "$ranks"
		# The same batches on pairs of GPUs that share each layer, and all weights by stage 3 of ZeRO.
		if [ $((ranks % 2)) -eq 0 ]; then
			train ranks-shared 180 "$octet" train --backend "$BACKEND" --recipe bf16 --steps $steps --json $together train.accumulate=2 --ranks "$ranks" train.tensor_parallel=2 train.zero_stage=3
		else
			line ranks-shared - "left out: needs an even number of GPUs"
		fi
		# Collectives as programs run them, and as NVIDIA's nccl-tests do.
		within "$here/tests/cuda" ranks-collectives 120 ./cuda.test -test.run '^$' -test.bench '^BenchmarkCollectives$' -test.benchtime 1x -ranks "$ranks" -sizes $sizes
		if command -v all_reduce_perf >/dev/null; then
			within . ranks-nccl-tests 120 all_reduce_perf -b 256M -e 256M -g "$ranks"
		else
			line ranks-nccl-tests - "left out: all_reduce_perf of NVIDIA's nccl-tests is not in the PATH"
		fi
		gpus=${GPUS:-1}
	fi
fi
if wanted peers; then
	# The same models and batches as in part steps.
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
	# Out-of-bounds accesses of the kernels, and races in shared memory, in every seventh
	# case of the conformance suite, since each takes tens of times as long. cuBLASLt's
	# kernels are excluded. The tests check errors that calls return; some are intended.
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
[ $late -gt 0 ] && verdict="$verdict, $late left out for lack of time"
line total "" "$verdict"
echo
"$here/gpucheck" "$OUT" || failed=$((failed + 1))
echo "To send back: tar czf results.tgz $results"
[ $failed -eq 0 ]
