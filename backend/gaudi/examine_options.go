package gaudi

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"octet/backend"
	"octet/fp8"
)

// The published sources do not say which options a Gaudi 3 needs, so octet doctor asks
// the compiler and the device, with one GEMM each.

// examineMixedPairs reports whether the compiler accepts E5M2 × E4M3, which pairs=mixed
// requires.
func examineMixedPairs(d *device) backend.Finding {
	f := backend.Finding{What: "pairs=mixed", OK: true}
	mixed := [2]fp8.DType{fp8.E5M2, d.spec.E4M3}
	pairs := fp8.PerTensor(mixed)
	requested := slices.Contains(d.spec.Pairs, pairs[0])
	s, p := d.spec, gemmProgram(mixed[0], mixed[1])
	s.Pairs = append(slices.Clone(s.Pairs), pairs...)
	schedule, err := newCutter(s, true, p).cut(p)
	if err == nil {
		_, err = d.compile([]program{{"a GEMM of mixed formats", schedule.steps[0].unit.graph}})
	}
	switch {
	case err == nil && requested:
		f.Detail = "E5M2 × E4M3 compiles"
	case err == nil:
		f.Detail = "E5M2 × E4M3 compiles: with this option, as in gaudi:0,pairs=mixed, weights and inputs need no copy in E5M2"
	case requested:
		f.OK, f.Detail, f.Fix = false, fmt.Sprintf("E5M2 × E4M3 does not compile: %v", err), "leave pairs=mixed out"
	default: // the published compiler behaves so
		f.OK, f.Optional, f.Detail = false, true, fmt.Sprintf("E5M2 × E4M3 does not compile, so leave this option out: %v", err)
	}
	return f
}

// examineE4M3 reports the largest value of the GEMM's E4M3, from code 0x78, which is 256
// or infinity.
func examineE4M3(d *device) backend.Finding {
	f := backend.Finding{What: "e4m3=240", OK: true}
	x, err := timesOne(d, 0x78)
	if err != nil {
		f.OK, f.Detail = false, fmt.Sprintf("an FP8 GEMM fails: %v", err)
		return f
	}
	f.Detail = fmt.Sprintf("0x78 × 1 is %v in an E4M3 GEMM", x)
	finite := x == 256
	switch {
	case !finite && !math.IsInf(float64(x), 1) && !math.IsNaN(float64(x)):
		f.OK = false
		f.Detail += ", and should be 256, infinity or NaN"
	case finite && own(d.spec).clip:
		f.Detail += ": this option is not needed here, and costs accuracy and time"
	case !finite && !own(d.spec).clip:
		f.OK, f.Fix = false, "use this option, as in --backend gaudi:0,e4m3=240: casts saturate at 448, but GEMMs read codes above 240 as infinity or NaN"
	}
	return f
}

// gemmProgram returns a program of one FP8 GEMM.
func gemmProgram(a, b fp8.DType) *backend.Program {
	const edge = 16 // of square matrices: their bytes are a multiple of every device's alignment
	vars := backend.NewVars()
	operand := func(name string, d fp8.DType) *backend.Tensor {
		t := vars.Tensor(backend.Stash, name, d, edge, edge)
		t.Scale = vars.Tensor(backend.Stash, name+".scale_inv", fp8.F32, 1)
		return t
	}
	p := vars.Program("examine")
	p.Add(&backend.MatMul{A: operand("a", a), B: operand("b", b), Out: vars.Tensor(backend.Output, "out", fp8.F32, edge, edge)})
	return p
}

// timesOne returns the product of an E4M3 code and 1, from an FP8 GEMM on the device.
func timesOne(d *device, code byte) (float32, error) {
	p := gemmProgram(d.spec.E4M3, d.spec.E4M3)
	loaded, err := backend.Load(d, p)
	if err != nil {
		return 0, err
	}
	op := p.Nodes()[0].Op.(*backend.MatMul)
	one, scale := byte(d.spec.E4M3.Nearest(1, fp8.Saturate)), fp8.AppendFloats(nil, 1)
	for t, first := range map[*backend.Tensor][]byte{op.A: {code}, op.B: {one}, op.A.Scale: scale, op.B.Scale: scale} {
		if err := d.Write(t, append(first, make([]byte, int(t.Bytes())-len(first))...)); err != nil {
			return 0, err
		}
	}
	if err := loaded[0].Run(context.Background()); err != nil {
		return 0, err
	}
	out := make([]byte, op.Out.Bytes())
	err = d.Read(op.Out, out)
	return math.Float32frombits(binary.LittleEndian.Uint32(out)), err
}
