package main

import (
	"fmt"
	"io"
	"math"
	"strings"

	"octet/backend"
	"octet/study/internal/finding"
)

// A Gaudi 2, and the paper's eight. Peaks and bandwidth are nominal; copies reach a share of
// the bandwidth.
const (
	peakBF16   = 432e12
	peakFP8    = 865e12
	bandwidth  = 0.85 * 2.46e12
	devices    = 8
	samplesFit = 12.65 // of BF16 in a second, the only row that the model reads
)

// published are the paper's other rows, in samples a second. One is from a digest of the paper,
// two are from memory.
var published = []struct {
	row, recipe string
	samples     float64
	source      string
}{
	{"FP8, w3 in BF16", "fp8-w3-bf16", 16.07, "memory"},
	{"FP8, Smooth-SwiGLU", "fp8-smooth", 16.89, "second hand, +33.5 %"},
	{"FP8, Smooth-SwiGLU", "fp8-paper", 16.89, "second hand, +33.5 %"},
	{"FP8", "fp8-delayed", 17.34, "memory"},
}

// work is that of one micro-batch on one device.
type work struct {
	bf16, fp8 float64 // FLOPs of GEMMs, by their operands
	casts     float64 // bytes that casts move if each reads BF16 and writes all its FP8 copies
	others    float64 // bytes of all ops but GEMMs and attention, where Octet fuses the casts
}

// gemms returns the seconds of the GEMMs.
func (w work) gemms() float64 { return w.bf16/peakBF16 + w.fp8/peakFP8 }

// workOf counts the work of the program micro, 126 of the 128 micro-batches of a step. casts
// are those of the released code, which casts weights for each micro-batch, too.
func workOf(p plan) (w work) {
	sources := map[string]float64{} // elements, by the name without the format
	for _, q := range p.programs {
		if q.Name() != "micro" {
			continue
		}
		for _, n := range q.Nodes() {
			cost := n.Cost()
			switch op := n.Op.(type) {
			case *backend.Attention, *backend.AttentionGrad:
			case *backend.MatMul:
				if !op.A.DType.IsQuantized() {
					w.bf16 += float64(cost.FLOPs)
					continue
				}
				w.fp8 += float64(cost.FLOPs)
				for _, t := range []*backend.Tensor{op.A, op.B} {
					source := strings.TrimSuffix(t.Root().Name, "."+t.DType.String())
					sources[source+"/"+t.DType.String()] = float64(t.Elems())
					sources[source] = 2 * float64(t.Elems())
				}
			default:
				w.others += float64(cost.Bytes)
				if _, ok := op.(*backend.SwiGLUAmax); ok {
					w.casts += float64(cost.Bytes)
				}
			}
		}
	}
	for _, bytes := range sources {
		w.casts += bytes
	}
	return w
}

// throughput prints samples a second of a model whose one free number, the seconds that the
// BF16 row leaves beside its GEMMs, is the same for all rows.
func throughput(w io.Writer, plans map[string]plan) error {
	base := workOf(plans["bf16"])
	rest := devices/samplesFit - base.gemms()
	ms := func(s float64) string { return fmt.Sprintf("%.0f", 1e3*s) }
	rows := [][]string{{"BF16", "`bf16`", tera(base.bf16), "0", ms(base.gemms()), "0", ms(rest), "fitted", "fitted", "fitted", fmt.Sprint(samplesFit), "second hand"}}
	var l finding.List
	predicted := map[string]float64{}
	for _, r := range published {
		k := workOf(plans[r.recipe])
		casts := k.casts / bandwidth
		samples := devices / (rest + k.gemms() + casts)
		fused := devices / (rest + k.gemms() + (k.others-base.others)/bandwidth)
		slow := devices / (devices/samplesFit*k.gemms()/base.gemms() + casts)
		predicted[r.recipe] = samples
		off := 100 * (samples/r.samples - 1)
		rows = append(rows, []string{
			r.row, "`" + r.recipe + "`", tera(k.bf16), tera(k.fp8), ms(k.gemms()), ms(casts), ms(rest),
			fmt.Sprintf("%.2f (%+.1f %%)", samples, off), fmt.Sprintf("%.2f", fused), fmt.Sprintf("%.2f", slow), fmt.Sprint(r.samples), r.source,
		})
		if r.recipe != "fp8-paper" {
			l.Check(fmt.Sprintf("`%s`: within 6 %% of the published row", r.recipe), fmt.Sprintf("%+.1f %%", off), math.Abs(off) <= 6)
		}
	}
	w3, smooth, plain := predicted["fp8-w3-bf16"], predicted["fp8-paper"], predicted["fp8-delayed"]
	l.Check("the published order: w3 in BF16, Smooth-SwiGLU, plain FP8", fmt.Sprintf("%.2f, %.2f, %.2f", w3, smooth, plain), w3 < smooth && smooth < plain)
	head := []string{"row", "recipe", "BF16 GEMMs, TFLOP", "FP8", "GEMMs, ms", "casts, ms", "remainder, ms", "predicted, samples/s", "with Octet's fused casts", "without a remainder", "published", "source"}
	if err := finding.Table(w, "Throughput on eight Gaudi 2, predicted from the BF16 row", head, rows); err != nil {
		return err
	}
	if err := l.Write(w); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, leftOut)
	return err
}

// leftOut says what the model does not know.
const leftOut = `Predicted, not measured. Nominal peaks: 432 TFLOP/s in BF16, 865 in FP8; casts at 0.85 of 2.46 TB/s.
The remainder is what the BF16 row leaves beside GEMMs at their peak: attention, row ops,
communication, the optimizer, gaps of the host, and GEMMs below their peak. One row cannot tell these
apart; without a remainder, all of the time goes into GEMMs, and FP8 speeds all of it up. The model
leaves out what FP8 changes in the remainder: recomputation, shapes, overlap, amax reductions, and bytes that
row ops read in FP8.`

func tera(x float64) string { return fmt.Sprintf("%.0f", x/1e12) }
