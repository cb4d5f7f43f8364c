package gaudi

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"octet/backend"
	"octet/csrc/libsynapse"
	"octet/fp8"
)

// The published sources do not say which options a Gaudi 3 needs, so octet doctor asks
// the compiler and the device, with one GEMM each.

// examineMixedPairs reports whether the compiler accepts E5M2 × E4M3, which pairs=mixed
// requires.
func examineMixedPairs(d *device) backend.Finding {
	f := backend.Finding{What: "pairs=mixed", OK: true}
	requested := slices.Contains(d.spec.Pairs, [2]fp8.DType{d.spec.E4M3, fp8.E5M2})
	_, err := d.compile([]program{{"a GEMM of mixed formats", gemmGraph(libsynapse.E5M2, libsynapse.E4M3)}})
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

// edge is the edge length of gemmGraph's square matrices: their bytes are a multiple of
// every device's alignment.
const edge = 16

// gemmGraph returns one FP8 GEMM as matMul writes it, each operand in its own section: A,
// B, their scales, the F32 result.
func gemmGraph(a, b libsynapse.DataType) *libsynapse.Graph {
	square, one := []uint64{edge, edge}, []uint64{1}
	g := &libsynapse.Graph{Tensors: []libsynapse.Tensor{
		{Name: "a", Type: a, Sizes: square},
		{Name: "b", Type: b, Sizes: square},
		{Name: "scale of a", Type: libsynapse.F32, Sizes: one},
		{Name: "scale of b", Type: libsynapse.F32, Sizes: one},
		{Name: "out", Type: libsynapse.F32, Sizes: square},
	}}
	for i := range g.Tensors {
		g.Tensors[i].Section = i
	}
	g.Sections = len(g.Tensors)
	g.Nodes = []libsynapse.Node{{GUID: "fp8_gemm_f32", Name: "gemm", In: []int{0, 1, 2, 3}, Out: []int{4}, Params: libsynapse.GemmParams(false, false)}}
	return g
}

// timesOne returns the product of an E4M3 code and 1, from an FP8 GEMM on the device.
func timesOne(d *device, code byte) (float32, error) {
	g := gemmGraph(libsynapse.E4M3, libsynapse.E4M3)
	recipes, err := d.compile([]program{{"an FP8 GEMM", g}})
	if err != nil {
		return 0, err
	}
	contents := [][]byte{make([]byte, edge*edge), make([]byte, edge*edge), fp8.AppendFloats(nil, 1), fp8.AppendFloats(nil, 1), make([]byte, 4*edge*edge)}
	contents[0][0] = code
	contents[1][0] = byte(d.spec.E4M3.Nearest(1, fp8.Saturate))
	c := command{Recipe: recipes[0].Number}
	for i, raw := range contents {
		at, err := d.allocBlock(g.Tensors[i].Name, int64(len(raw)))
		if err != nil {
			return 0, err
		}
		if err := d.upload(at, raw); err != nil {
			return 0, err
		}
		c.Sections = append(c.Sections, at)
	}
	if c.Workspace, err = d.allocBlock("workspace", recipes[0].Workspace); err != nil {
		return 0, err
	}
	list, err := d.synapse.prepare([]command{c})
	if err != nil {
		return 0, err
	}
	d.lists = append(d.lists, list)
	if err := d.synapse.run(list, 0, 1); err != nil {
		return 0, err
	}
	out := make([]byte, 4)
	err = d.download(out, c.Sections[4])
	return math.Float32frombits(binary.LittleEndian.Uint32(out)), err
}
