// Package gemm multiplies two matrices of FP8 codes on a backend, for bug reports,
// comparisons with other programs, and lessons.
package gemm

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"

	"octet/backend"
	"octet/backend/arith"
	"octet/fp8"
)

// Matrix holds FP8 codes, row-major, and optional block scales.
type Matrix struct {
	DType      fp8.DType
	Rows, Cols int
	Codes      []uint8
	Scales     []uint8 // E8M0, one for each 32 codes of a row (MXFP8), or nil
}

// across returns the number of scales in a row.
func (m Matrix) across() int { return (m.Cols + arith.Block - 1) / arith.Block }

// Row returns row i.
func (m Matrix) Row(i int) arith.Operand {
	o := arith.Operand{Codes: m.Codes[i*m.Cols:][:m.Cols], DType: m.DType}
	if m.Scales != nil {
		o.Scales = m.Scales[i*m.across():][:m.across()]
	}
	return o
}

// Read reads a matrix from text: one line per row, two hexadecimal digits per code. It
// ignores spaces and empty lines.
func Read(r io.Reader, d fp8.DType) (m Matrix, err error) {
	m.DType = d
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<24)
	for line := 1; s.Scan(); line++ {
		digits := strings.Join(strings.Fields(s.Text()), "")
		if digits == "" {
			continue
		}
		row, err := hex.DecodeString(digits)
		if err != nil {
			return m, fmt.Errorf("line %d: %w: expected two hexadecimal digits for each code", line, err)
		}
		if m.Rows > 0 && len(row) != m.Cols {
			return m, fmt.Errorf("line %d has %d codes, the first row has %d", line, len(row), m.Cols)
		}
		m.Rows, m.Cols, m.Codes = m.Rows+1, len(row), append(m.Codes, row...)
	}
	if err := s.Err(); err != nil {
		return m, err
	}
	if m.Rows == 0 {
		return m, errors.New("no codes: expected a line of hexadecimal digits for each row")
	}
	return m, nil
}

// Random returns a matrix of normally distributed values with standard deviation 16.
func Random(seed uint64, d fp8.DType, rows, cols int) Matrix {
	r := rand.New(rand.NewPCG(seed, uint64(rows)<<32|uint64(cols)))
	m := Matrix{DType: d, Rows: rows, Cols: cols, Codes: make([]uint8, rows*cols)}
	for i := range m.Codes {
		m.Codes[i] = uint8(d.Nearest(float32(r.NormFloat64()*16), fp8.Saturate))
	}
	return m
}

// RandomScales gives m random block scales from 2^-8 to 2^7.
func (m *Matrix) RandomScales(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	m.Scales = make([]uint8, m.Rows*m.across())
	for i := range m.Scales {
		m.Scales[i] = uint8(127 - 8 + r.IntN(16))
	}
}

// SetScales makes the codes of s the block scales of m.
func (m *Matrix) SetScales(s Matrix) error {
	if s.Rows != m.Rows || s.Cols != m.across() {
		return fmt.Errorf("%d×%d scales for %d×%d codes: expected %d×%d, one for each %d codes of a row",
			s.Rows, s.Cols, m.Rows, m.Cols, m.Rows, m.across(), arith.Block)
	}
	m.Scales = s.Codes
	return nil
}

// Operand returns m as an operand of Multiply.
func (m Matrix) Operand() Operand {
	o := Operand{DType: m.DType, Rows: m.Rows, Cols: m.Cols, Codes: m.Codes, Scale: fp8.AppendFloats(nil, 1), ScaleDType: fp8.F32, ScaleRows: 1, ScaleCols: 1}
	if m.Scales != nil {
		o.Block, o.Scale, o.ScaleDType = backend.Block1x32, m.Scales, fp8.E8M0
		o.ScaleRows, o.ScaleCols = m.Rows, m.across()
	}
	return o
}

// Operand is a matrix of codes with scales, as a device holds it.
type Operand struct {
	DType      fp8.DType
	Rows, Cols int
	Codes      []byte // codes of four bits two in a byte
	Block      backend.ScaleBlock
	// Scale holds the scale_inv of each block, ScaleRows × ScaleCols, in the format
	// ScaleDType. A value is code · scale_inv · Outer.
	Scale                []byte
	ScaleDType           fp8.DType
	ScaleRows, ScaleCols int
	Outer                float32 // the outer scale_inv; 0: none
}

// Multiply returns a·bᵀ, the dot products of the rows of a and b: [a.Rows, b.Rows],
// row-major. It binds dev, which cannot be bound again.
func Multiply(ctx context.Context, dev backend.Backend, a, b Operand, accum backend.Accum) ([]float32, error) {
	vars := backend.NewVars()
	values := map[*backend.Tensor][]byte{}
	declare := func(name string, d fp8.DType, data []byte, shape ...int) *backend.Tensor {
		t := vars.Tensor(backend.Input, name, d, shape...)
		values[t] = data
		return t
	}
	operand := func(name string, o Operand) *backend.Tensor {
		t := declare(name, o.DType, o.Codes, o.Rows, o.Cols)
		t.Block, t.Scale = o.Block, declare(name+".scale_inv", o.ScaleDType, o.Scale, o.ScaleRows, o.ScaleCols)
		if o.Outer != 0 {
			t.Outer = declare(name+".outer", fp8.F32, fp8.AppendFloats(nil, o.Outer), 1)
		}
		return t
	}
	x, y := operand("a", a), operand("b", b)
	out := vars.Tensor(backend.Stash, "out", fp8.F32, a.Rows, b.Rows)
	p := vars.Program("gemm")
	p.Add(&backend.MatMul{A: x, B: y, TransB: true, Out: out, Accum: accum})
	loaded, err := backend.Load(dev, p)
	if err != nil {
		return nil, err
	}
	for t, raw := range values {
		if err := dev.Write(t, raw); err != nil {
			return nil, err
		}
	}
	if err := loaded[0].Run(ctx); err != nil {
		return nil, err
	}
	raw := make([]byte, out.Bytes())
	if err := dev.Read(out, raw); err != nil {
		return nil, err
	}
	result := make([]float32, out.Elems())
	out.DType.Decode(result, raw)
	return result, nil
}
