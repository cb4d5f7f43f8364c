#!/bin/sh
# What there is to find out about Octet on a machine with a GPU, in some ten
# minutes: `make gpu-check` packs this file and a binary, which need neither Go
# nor a compiler there. Each part writes files into $OUT and a line into
# summary.txt; a part that fails does not stop the next one.
#
#	tar xzf gpu-check.tar.gz && sh gpu-check/gpu-check.sh
#
# OUT is where files go (gpu-check-results), BACKEND what is checked (cuda:0),
# PARTS which of: doctor conformance compare parity bench steps curves.
set -u
here=$(cd "$(dirname "$0")" && pwd)
octet=$here/octet
OUT=${OUT:-gpu-check-results}
BACKEND=${BACKEND:-cuda:0}
PARTS=${PARTS:-doctor conformance compare parity bench steps curves}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT

# part NAME SECONDS COMMAND... runs one, if it is asked for.
part() {
	name=$1 limit=$2
	shift 2
	begin=$(date +%s)
	timeout "$limit" "$@" >"$OUT/$name.txt" 2>"$OUT/$name.err"
	status=$?
	[ $status -eq 0 ] && verdict=ok || verdict="FAILED ($status): $(tail -n 1 "$OUT/$name.err")"
	printf '%-24s %4s s  %s\n' "$name" $(($(date +%s) - begin)) "$verdict" | tee -a "$OUT/summary.txt"
}

wanted() {
	case " $PARTS " in *" $1 "*) return 0 ;; esac
	return 1
}

: >"$OUT/summary.txt"
{
	"$octet" version
	nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm --format=csv 2>&1
} | tee "$OUT/versions.txt"

if wanted doctor; then
	part doctor 60 "$octet" doctor
fi
if wanted conformance; then
	part conformance 300 "$octet" doctor --backend "$BACKEND"
fi
if wanted compare; then
	# Op by op against the emulator, in its plain arithmetic and in the device's.
	for yardstick in emu emu:h100; do
		part "compare-$yardstick" 120 "$octet" compare --backend "$yardstick" --backend "$BACKEND"
	done
fi
if wanted parity; then
	# The same run on both, the losses of every step in metrics.jsonl.
	for recipe in bf16 fp8-delayed fp8-smooth; do
		for device in emu "$BACKEND"; do
			run=$(echo "$recipe-$device" | tr : -)
			part "parity-$run" 120 "$octet" train --backend "$device" --recipe "$recipe" --steps 50 --out "$runs/$run" --json
			cp "$runs/$run/metrics.jsonl" "$OUT/parity-$run.jsonl"
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
	recipes=bf16,fp8-w3-bf16,fp8-smooth,fp8-delayed
	part step-124m 60 "$octet" bench step --backend "$BACKEND" --recipe $recipes --seconds 3 --model 124m train.micro_batch=16 --json
	part step-1b 120 "$octet" bench step --backend "$BACKEND" --recipe $recipes --seconds 5 --model 1b train.micro_batch=4 --json
	part step-7b-layers 180 "$octet" bench step --backend "$BACKEND" --recipe $recipes --seconds 5 --model llama2-7b model.layers=8 train.micro_batch=1 --json
	part profile 60 "$octet" train --backend "$BACKEND" --profile --steps 20 --out "$runs/profile"
fi
if wanted curves; then
	for recipe in bf16 fp8-smooth; do
		for seed in 1 2; do
			part "curve-$recipe-$seed" 180 "$octet" train --backend "$BACKEND" --recipe $recipe --seed $seed --steps 1000 --model 124m model.vocab=256 data.seq=1024 --out "$runs/$recipe-$seed" --json
			cp "$runs/$recipe-$seed/metrics.jsonl" "$OUT/curve-$recipe-$seed.jsonl"
		done
	done
fi
echo
cat "$OUT/summary.txt"
