#!/bin/sh
# What there is to find out about Octet on a machine with a GPU: `make gpu-check`
# packs this file, a binary and a corpus, which need neither Go nor a compiler
# there. Each part writes files into $OUT and a line into summary.txt; a part that
# fails does not stop the next one. The status is 1 if one failed, or if there is
# no GPU that can be used.
#
#	tar xzf gpu-check.tar.gz && sh gpu-check/gpu-check.sh
#
# OUT is where files go (gpu-check-results), BACKEND what is checked (cuda:0), DATA
# what the curves are trained on (corpus.txt), PARTS which of: conformance compare
# parity bench steps curves sanitizer. The doctor is asked in any case.
set -u
here=$(cd "$(dirname "$0")" && pwd)
octet=$here/octet
results=${OUT:-gpu-check-results}
BACKEND=${BACKEND:-cuda:0}
DATA=${DATA:-$here/corpus.txt}
PARTS=${PARTS:-conformance compare parity bench steps curves sanitizer}
mkdir -p "$results" || exit 1
OUT=$(cd "$results" && pwd)
runs=$(mktemp -d) || exit 1
trap 'rm -rf "$runs"' EXIT
trap 'exit 1' INT TERM
# Functions of NVML stay unresolved where there is none.
unset LD_BIND_NOW

# line NAME TIME VERDICT writes one of the summary.
line() {
	printf '%-28s %6s  %s\n' "$1" "$2" "$3" | tee -a "$OUT/summary.txt"
}

# part NAME SECONDS COMMAND... runs one.
parts=0 failed=0
part() {
	name=$1 limit=$2
	shift 2
	begin=$(date +%s)
	timeout -k 10 "$limit" "$@" >"$OUT/$name.txt" 2>"$OUT/$name.err"
	status=$?
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
}

# train NAME SECONDS ARGUMENT... is a part that trains, and keeps the run's figures.
train() {
	run=$runs/$1
	part "$@" --out "$run"
	for file in metrics.jsonl timing.jsonl trace.json; do
		[ -f "$run/$file" ] && cp "$run/$file" "$OUT/$name-$file"
	done
	rm -rf "$run" # checkpoints are large
}

wanted() {
	case " $PARTS " in *" $1 "*) return 0 ;; esac
	return 1
}

# filename spells a backend without the colon.
filename() {
	echo "$1" | tr : -
}

: >"$OUT/summary.txt"
{
	"$octet" version
	echo "commit $(cat "$here/commit" 2>/dev/null || echo unknown)"
	if command -v nvidia-smi >/dev/null; then
		nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm --format=csv 2>&1
	else
		echo "nvidia-smi is not in the PATH: doctor.txt says which driver and GPUs there are"
	fi
} | tee "$OUT/versions.txt"
echo

part doctor 60 "$octet" doctor
# The smallest thing that a GPU is needed for; 2 says that it cannot be had.
part probe 120 "$octet" bench quantize --backend "$BACKEND" --seconds 0.1 --json 256x256
if [ $status -eq 2 ]; then
	echo "gpu-check: no usable GPU here: see $results/doctor.txt; BACKEND=cuda:1 checks another one" | tee -a "$OUT/summary.txt" >&2
	exit 1
fi

if wanted conformance; then
	part conformance 300 "$octet" doctor --backend "$BACKEND"
fi
if wanted compare; then
	# Op by op against the emulator, in its plain arithmetic and in the device's.
	for yardstick in emu emu:h100; do
		part "compare-$(filename $yardstick)" 120 "$octet" compare --backend "$yardstick" --backend "$BACKEND"
	done
fi
if wanted parity; then
	# The same run on both, the losses of every step in metrics.jsonl.
	for recipe in bf16 fp8-delayed fp8-smooth; do
		for device in emu "$BACKEND"; do
			train "parity-$recipe-$(filename "$device")" 120 "$octet" train --backend "$device" --recipe "$recipe" --steps 50 --json
		done
	done
fi
if wanted bench; then
	# Llama-7B: 4,096 tokens through q, up and down.
	part bench-gemm 120 "$octet" bench gemm --backend "$BACKEND" --json 4096x4096x4096 4096x11008x4096 4096x4096x11008
	part bench-quantize 60 "$octet" bench quantize --backend "$BACKEND" --json 4096x4096 4096x11008
	part bench-optimizer 60 "$octet" bench optimizer --backend "$BACKEND" --json
fi
if wanted steps; then
	# Recipes that are measured in turns are in memory together: of the larger
	# models, which take up to 38 GB, each has the GPU to itself.
	part step-124m 60 "$octet" bench step --backend "$BACKEND" --recipe bf16,fp8-w3-bf16,fp8-smooth,fp8-delayed --seconds 3 --model 124m train.micro_batch=16 --json
	for recipe in bf16 fp8-w3-bf16 fp8-smooth fp8-delayed; do
		part "step-1b-$recipe" 60 "$octet" bench step --backend "$BACKEND" --recipe $recipe --seconds 5 --model 1b train.micro_batch=4 --json
		part "step-7b-layers-$recipe" 60 "$octet" bench step --backend "$BACKEND" --recipe $recipe --seconds 5 --model llama2-7b model.layers=8 train.micro_batch=1 --json
	done
	train profile 60 "$octet" train --backend "$BACKEND" --profile --steps 20
	# Each kind of op beside its roofline at 7B's shapes: attention, above all.
	train profile-7b-layers 120 "$octet" train --backend "$BACKEND" --profile --steps 12 --model llama2-7b model.layers=2 model.vocab=256 train.micro_batch=1
fi
if wanted curves; then
	for recipe in bf16 fp8-smooth; do
		for seed in 1 2; do
			train "curve-$recipe-$seed" 180 "$octet" train --backend "$BACKEND" --recipe $recipe --seed $seed --steps 1000 --data "$DATA" --model 124m model.vocab=256 data.seq=1024 --json
		done
	done
fi
if wanted sanitizer; then
	# The kernels' reads and writes beyond what they own, and races in shared memory.
	if command -v compute-sanitizer >/dev/null; then
		for tool in memcheck racecheck; do
			part "sanitizer-$tool" 600 compute-sanitizer --tool $tool --error-exitcode 1 "$octet" doctor --backend "$BACKEND"
		done
	else
		line sanitizer - "left out: compute-sanitizer is not in the PATH (CUDA toolkit, package cuda-sanitizer-12-8)"
	fi
fi

echo
if [ $failed -gt 0 ]; then
	line total "" "$failed of $parts parts FAILED"
else
	line total "" "all $parts parts ok"
fi
echo "To send back: tar czf results.tgz $results"
[ $failed -eq 0 ]
