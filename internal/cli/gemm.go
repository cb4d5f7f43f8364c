package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"octet/backend"
	"octet/backend/arith"
	"octet/fp8"
	"octet/internal/arrays"
	"octet/internal/bench"
	"octet/internal/gemm"
)

type gemmCmd struct {
	A       string `arg:"" optional:"" name:"A" help:"A .npy or safetensors file of one matrix of values, which the device casts; a safetensors file of one matrix of codes with its scales, as octet quantize writes it; or a text file of codes of eight bits: a line for each row, two hexadecimal digits for each code; default: random codes."`
	B       string `arg:"" optional:"" name:"B" help:"File of the second matrix, whose rows are multiplied with the rows of A."`
	Formats string `default:"e4m3,e4m3" placeholder:"A,B" help:"Formats of the operands that the device casts, or of codes in text files and random ones, which have eight bits; one format is for both; default: ${default}."`
	Shape   string `default:"1x1x64" placeholder:"MxNxK" help:"Shape of random matrices: A is MxK, B is NxK; default: ${default}."`
	Seed    uint64 `default:"1" placeholder:"N" help:"Seed of random matrices; default: ${default}."`
	Scales  string `placeholder:"A,B" help:"For codes: two text files of E8M0 scales, one for each 32 codes of a row (MXFP8), or the word random."`
	Fast    bool   `help:"Accumulate in the matrix unit, as a forward GEMM does; otherwise sums are promoted to FP32 where the device does so."`
	Explain string `placeholder:"I,J" help:"Show step by step how a device model computes the element in row I, column J, from 0."`
	Out     string `placeholder:"FILE" help:"Write the result to this .npy or safetensors file instead of printing it."`
	JSON    bool   `help:"Print one JSON object."`
	castFlags
	device
}

// Help returns the text that gemm --help adds.
func (gemmCmd) Help() string {
	return `The result is A times B transposed, in FP32: element [i, j] is the dot product of row i of A and row j of B.

--granularity and --scale apply to files of values. A and B are cast with these scales as octet quantize does, rounded to nearest, and the GEMM multiplies by the scales.

Examples:
  octet gemm --backend emu:h100 --explain 0,0
  octet gemm --backend emu:gaudi2 --formats e5m2,e5m2 --shape 4x4x4096
  octet gemm --backend emu:b200 --scales random --explain 0,0
  octet gemm a.txt b.txt --backend emu:b200 --json
  octet gemm a.npy b.npy --formats e4m3,e5m2 --granularity row --out c.npy
  octet gemm codes.safetensors b.npy --formats e4m3 --granularity row`
}

func (c gemmCmd) Run(ctx context.Context, t *terminal) (err error) {
	if c.Out != "" {
		if _, err := arrays.CheckOut(c.Out, c.A, c.B); err != nil {
			return badInput(fmt.Errorf("--out: %w", err))
		}
	}
	if holdsValues(c.A) || holdsValues(c.B) {
		return c.multiplyValues(ctx, t)
	}
	a, b, err := c.matrices()
	if err == nil {
		err = c.scale(&a, &b)
	}
	if err != nil {
		return badInput(err)
	}
	row, column, err := c.element(a, b)
	if err != nil {
		return badInput(err)
	}
	model, err := c.explained()
	if err != nil {
		return badInput(err)
	}
	dev, err := c.open()
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	result, err := gemm.Multiply(ctx, dev, a.Operand(), b.Operand(), c.accum())
	if err != nil {
		return badInput(err)
	}
	if c.Explain != "" {
		return model.Explain(t.out, a.Row(row), b.Row(column), !c.Fast)
	}
	return c.show(t, result, a.Rows, b.Rows, a.Cols)
}

func (c gemmCmd) accum() backend.Accum {
	if c.Fast {
		return backend.Fast
	}
	return backend.Promoted
}

// show writes or prints the result [m, n].
func (c gemmCmd) show(t *terminal, result []float32, m, n, k int) error {
	if c.Out != "" {
		name := strings.TrimSuffix(filepath.Base(c.Out), filepath.Ext(c.Out))
		list := []arrays.Tensor{{Name: name, DType: fp8.F32, Shape: []int{m, n}, Data: fp8.AppendFloats(nil, result...)}}
		return arrays.Write(c.Out, list, nil)
	}
	if c.JSON {
		return json.NewEncoder(t.out).Encode(gemmJSON(m, n, k, result))
	}
	return printMatrix(prose(t.out), result, n)
}

// gemmResult is the output of gemm --json. Bits hold what a JSON number cannot: the sign of
// a zero, NaN and infinity.
type gemmResult struct {
	M      int        `json:"m"`
	N      int        `json:"n"`
	K      int        `json:"k"`
	Values []*float32 `json:"values"` // row-major; null: not finite
	Bits   []string   `json:"bits"`
}

func gemmJSON(m, n, k int, result []float32) gemmResult {
	p := gemmResult{M: m, N: n, K: k}
	for _, x := range result {
		value := &x
		if x-x != 0 {
			value = nil
		}
		p.Values = append(p.Values, value)
		p.Bits = append(p.Bits, fmt.Sprintf("%08x", math.Float32bits(x)))
	}
	return p
}

func printMatrix(w io.Writer, result []float32, cols int) error {
	for row := range slices.Chunk(result, cols) {
		if _, err := fmt.Fprintln(w, strings.Trim(fmt.Sprint(row), "[]")); err != nil {
			return err
		}
	}
	return nil
}

// formats returns the formats of the operands on the device.
func (c gemmCmd) formats() (formats [2]fp8.DType, err error) {
	spec, err := backend.SpecOf(c.Backend)
	if err != nil {
		return formats, err
	}
	left, right, two := strings.Cut(c.Formats, ",")
	if !two {
		right = left
	}
	for i, text := range []string{left, right} {
		if formats[i], err = gemm.Format(&spec, text); err != nil {
			return formats, fmt.Errorf("--formats: %w", err)
		}
		if !formats[i].IsQuantized() {
			return formats, fmt.Errorf("--formats %s: expected formats of up to eight bits, such as e5m2,e4m3", c.Formats)
		}
	}
	return formats, nil
}

// matrices reads the codes of the operands from their files, or generates random ones.
func (c gemmCmd) matrices() (a, b gemm.Matrix, err error) {
	formats, err := c.formats()
	if err != nil {
		return a, b, err
	}
	for _, d := range formats {
		if d.Format().Bits != 8 {
			return a, b, fmt.Errorf("--formats %s: %s codes have no text files and no random matrices: give .npy files of values", c.Formats, d)
		}
	}
	if c.castFlags != (castFlags{"tensor", "pow2"}) {
		return a, b, errors.New("--granularity and --scale are for .npy and safetensors files of values; --scales gives the scales of codes")
	}
	if c.A == "" {
		l, err := bench.ParseLayer(c.Shape)
		if err != nil {
			return a, b, fmt.Errorf("--shape: %w", err)
		}
		if limit := 1 << 28; max(l.Tokens*l.Out, l.Tokens*l.In, l.Out*l.In) > limit {
			return a, b, fmt.Errorf("--shape %s: a matrix has more than %d elements", c.Shape, limit)
		}
		return gemm.Random(c.Seed, formats[0], l.Tokens, l.In), gemm.Random(c.Seed+1, formats[1], l.Out, l.In), nil
	}
	if c.B == "" {
		return a, b, errors.New("gemm multiplies two matrices: give two files, or none")
	}
	for i, path := range []string{c.A, c.B} {
		m, err := readCodes(path, formats[i])
		if err != nil {
			return a, b, err
		}
		if i == 0 {
			a = m
		} else {
			b = m
		}
	}
	if a.Cols != b.Cols {
		return a, b, fmt.Errorf("rows of %s have %d codes, rows of %s have %d: both must have the same length K", c.A, a.Cols, c.B, b.Cols)
	}
	return a, b, nil
}

func readCodes(path string, d fp8.DType) (gemm.Matrix, error) {
	f, err := os.Open(path)
	if err != nil {
		return gemm.Matrix{}, err
	}
	m, err := gemm.Read(f, d)
	if err = errors.Join(err, f.Close()); err != nil {
		return m, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// scale sets the block scales that --scales gives.
func (c gemmCmd) scale(a, b *gemm.Matrix) error {
	switch c.Scales {
	case "":
		return nil
	case "random":
		a.RandomScales(c.Seed + 2)
		b.RandomScales(c.Seed + 3)
		return nil
	}
	left, right, ok := strings.Cut(c.Scales, ",")
	if !ok {
		return fmt.Errorf("--scales %s: expected two files, such as a.txt,b.txt, or random", c.Scales)
	}
	for i, m := range []*gemm.Matrix{a, b} {
		s, err := readCodes([]string{left, right}[i], fp8.E8M0)
		if err == nil {
			err = m.SetScales(s)
		}
		if err != nil {
			return fmt.Errorf("--scales: %w", err)
		}
	}
	return nil
}

// explained returns the device model that --explain shows, the zero value without
// --explain.
func (c gemmCmd) explained() (m arith.Model, err error) {
	const wanted = "--explain needs a device model, such as --backend emu:h100"
	_, name, _ := strings.Cut(c.Backend, ":")
	switch {
	case c.Explain == "":
		return m, nil
	case c.JSON:
		return m, errors.New("--explain prints text: omit --json")
	case name == "":
		return m, errors.New(wanted)
	}
	if m, err = arith.Lookup(name); err != nil {
		return m, fmt.Errorf("%s: %w", wanted, err)
	}
	return m, nil
}

// element returns the row and column that --explain gives.
func (c gemmCmd) element(a, b gemm.Matrix) (i, j int, err error) {
	if c.Explain == "" {
		return 0, 0, nil
	}
	if n, err := fmt.Sscanf(c.Explain, "%d,%d", &i, &j); err != nil || n != 2 {
		return 0, 0, fmt.Errorf("--explain %s: expected a row and a column, such as 0,0", c.Explain)
	}
	if i < 0 || j < 0 || i >= a.Rows || j >= b.Rows {
		return 0, 0, fmt.Errorf("--explain %d,%d: the result has %d rows and %d columns", i, j, a.Rows, b.Rows)
	}
	return i, j, nil
}
