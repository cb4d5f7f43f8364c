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

// Format returns the format that a device has for a name: e4m3 is the device's variant.
func Format(s *backend.Spec, name string) (fp8.DType, error) {
	d, err := fp8.ParseDType(name)
	if d == fp8.E4M3 {
		d = s.E4M3
	}
	return d, err
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
	m, err := Load(dev, a, b, accum)
	if err != nil {
		return nil, err
	}
	raw, err := m.Run(ctx, a, b)
	if err != nil {
		return nil, err
	}
	result := make([]float32, m.out.Elems())
	m.out.DType.Decode(result, raw)
	return result, nil
}

// Multiplier is a GEMM loaded on a device, for operands of one shape and format.
type Multiplier struct {
	dev      backend.Backend
	program  backend.Executable
	operands [2]operand
	out      *backend.Tensor
}

// operand is the tensors of an operand; outer is nil without an outer scale.
type operand struct{ codes, scale, outer *backend.Tensor }

// Load loads a·bᵀ for operands with the shapes, formats and blocks of a and b. It binds dev,
// which cannot be bound again.
func Load(dev backend.Backend, a, b Operand, accum backend.Accum) (*Multiplier, error) {
	vars := backend.NewVars()
	m := &Multiplier{
		dev: dev, operands: [2]operand{declare(vars, "a", a), declare(vars, "b", b)},
		out: vars.Tensor(backend.Stash, "out", fp8.F32, a.Rows, b.Rows),
	}
	p := vars.Program("gemm")
	p.Add(&backend.MatMul{A: m.operands[0].codes, B: m.operands[1].codes, TransB: true, Out: m.out, Accum: accum})
	loaded, err := backend.Load(dev, p)
	if err != nil {
		return nil, err
	}
	m.program = loaded[0]
	return m, nil
}

func declare(vars *backend.Vars, name string, o Operand) operand {
	t := operand{
		codes: vars.Tensor(backend.Input, name, o.DType, o.Rows, o.Cols),
		scale: vars.Tensor(backend.Input, name+".scale_inv", o.ScaleDType, o.ScaleRows, o.ScaleCols),
	}
	t.codes.Block, t.codes.Scale = o.Block, t.scale
	if o.Outer != 0 {
		t.outer = vars.Tensor(backend.Input, name+".outer", fp8.F32, 1)
		t.codes.Outer = t.outer
	}
	return t
}

// Run returns a·bᵀ in bytes, FP32 and little-endian. The operands must have the shapes, formats and
// blocks that Load was called with.
func (m *Multiplier) Run(ctx context.Context, a, b Operand) ([]byte, error) {
	for i, o := range []Operand{a, b} {
		if err := m.operands[i].write(m.dev, o); err != nil {
			return nil, err
		}
	}
	if err := m.program.Run(ctx); err != nil {
		return nil, err
	}
	raw := make([]byte, m.out.Bytes())
	return raw, m.dev.Read(m.out, raw)
}

func (t operand) write(dev backend.Backend, o Operand) error {
	if err := dev.Write(t.codes, o.Codes); err != nil {
		return err
	}
	if err := dev.Write(t.scale, o.Scale); err != nil {
		return err
	}
	if t.outer == nil {
		return nil
	}
	return dev.Write(t.outer, fp8.AppendFloats(nil, o.Outer))
}
