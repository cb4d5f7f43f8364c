package backend

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"octet/fp8"
)

// Class says who owns a tensor's bytes and how long they live. The backend decides
// where to place them.
type Class uint8

const (
	Temp   Class = iota // lives inside one program; the planner places it in the arena
	Param               // a master weight: persists, is saved with the model
	State               // optimizer moments, scales, histories: persists, is saved
	Stash               // outlives a program but is never saved: gradients, this step's amaxes, weight codes
	Input               // written by the host between runs
	Output              // read by the host between runs
)

var classNames = [...]string{"temp", "param", "state", "stash", "input", "output"}

func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return fmt.Sprintf("class(%d)", uint8(c))
}

// ScaleBlock is the granularity of a matrix's scales: each block of Rows × Cols elements
// shares one scale_inv. 0 means the whole extent, so the zero value is per-tensor.
type ScaleBlock struct{ Rows, Cols int }

// The granularities of common FP8 recipes.
var (
	PerTensor    = ScaleBlock{0, 0}
	PerRow       = ScaleBlock{1, 0}
	PerColumn    = ScaleBlock{0, 1}
	Block1x128   = ScaleBlock{1, 128}
	Block128x128 = ScaleBlock{128, 128}
	Block1x32    = ScaleBlock{1, 32} // MX
)

// ScaleShape returns the shape [rows, cols] of the scale tensor of a rows × cols matrix.
func (b ScaleBlock) ScaleShape(rows, cols int) (int, int) {
	tiles := func(n, tile int) int {
		if tile == 0 {
			return 1
		}
		return (n + tile - 1) / tile
	}
	return tiles(rows, b.Rows), tiles(cols, b.Cols)
}

func (b ScaleBlock) String() string {
	if b == PerTensor {
		return "tensor"
	}
	extent := func(n int) string {
		if n == 0 {
			return "*"
		}
		return fmt.Sprint(n)
	}
	return extent(b.Rows) + "x" + extent(b.Cols)
}

// ParseScaleBlock is the inverse of ScaleBlock.String.
func ParseScaleBlock(s string) (b ScaleBlock, err error) {
	if s == PerTensor.String() {
		return PerTensor, nil
	}
	rows, cols, ok := strings.Cut(s, "x")
	for _, side := range []struct {
		to   *int
		text string
	}{{&b.Rows, rows}, {&b.Cols, cols}} {
		if side.text == "*" {
			continue
		}
		if *side.to, err = strconv.Atoi(side.text); err != nil || *side.to < 1 {
			ok = false
		}
	}
	if !ok || b == PerTensor {
		return PerTensor, fmt.Errorf("unknown block %q: expected tensor, or rows and columns such as 1x32, 1x* and *x1", s)
	}
	return b, nil
}

// Tensor describes an array; it holds no data. The pointer is its identity: two programs
// that use the same *Tensor share its bytes. Ops treat every tensor as a row-major matrix
// whose rows are all dimensions but the last.
type Tensor struct {
	Name  string
	DType fp8.DType
	Shape []int
	Class Class

	// Scale holds the scale_inv of each block, which dequantizes: value = code × Scale. It
	// is F32, E8M0 or another format of up to eight bits that has NaN. Any tensor may have
	// one; a tensor in a quantized format must. Outer, F32 [1], is the scale_inv of
	// the whole tensor beside them: value = code × Scale × Outer.
	Scale *Tensor
	Block ScaleBlock
	Outer *Tensor

	// Expand says that Scale holds an fp8.Expansion of FP32 values for each block, so that
	// value = sign(code) · (|code|·s)^(1/k) · c. Only moments of AdamW are expanded.
	Expand bool

	// A view shares the bytes of Base: element (r, c) is Base's element
	// Offset + r·LD + c, counted in elements. Base is never itself a view.
	Base       *Tensor
	Offset, LD int

	// Value is the value of all elements of an Input that the host writes only once, so
	// that lowering may rely on it; 0 means unknown.
	Value float32

	shard    *Tensor // see Vars.Gathered
	sharedBy Group   // the ranks that hold the shards
}

// Rows returns the product of all dimensions but the last.
func (t *Tensor) Rows() int {
	n := 1
	for _, d := range t.Shape[:len(t.Shape)-1] {
		n *= d
	}
	return n
}

// Cols returns the last dimension.
func (t *Tensor) Cols() int { return t.Shape[len(t.Shape)-1] }

// Elems returns the number of elements.
func (t *Tensor) Elems() int { return t.Rows() * t.Cols() }

// Bytes returns the size of all elements in bytes, without the gaps of a view.
func (t *Tensor) Bytes() int64 { return int64(t.Rows()) * int64(t.DType.Bytes(t.Cols())) }

// ScaleIndex returns the index of the element of Scale that dequantizes element i of t,
// both row-major.
func (t *Tensor) ScaleIndex(i int) int {
	if t.Block == PerTensor {
		return 0
	}
	rows, cols := t.Rows(), t.Cols()
	_, across := t.Block.ScaleShape(rows, cols)
	return i/cols/cmp.Or(t.Block.Rows, rows)*across + i%cols/cmp.Or(t.Block.Cols, cols)
}

// Root returns the tensor that owns the bytes: Base of a view, else t.
func (t *Tensor) Root() *Tensor {
	if t.Base != nil {
		return t.Base
	}
	return t
}

// Contiguous reports whether rows follow each other without a gap.
func (t *Tensor) Contiguous() bool { return t.LD == t.Cols() || t.Rows() == 1 }

// span returns the range of Root's elements between t's first and last element.
func (t *Tensor) span() (from, to int) {
	return t.Offset, t.Offset + (t.Rows()-1)*t.LD + t.Cols()
}

// Overlaps reports whether two tensors may share an element. Views with equal
// strides are compared as rectangles, so that columns side by side do not
// overlap; others by the ranges that they span.
func (t *Tensor) Overlaps(u *Tensor) bool {
	if t.Root() != u.Root() {
		return false
	}
	tFrom, tTo := t.span()
	uFrom, uTo := u.span()
	if tFrom >= uTo || uFrom >= tTo {
		return false
	}
	if t.LD != u.LD {
		return true
	}
	tCol, uCol := t.Offset%t.LD, u.Offset%u.LD
	wraps := tCol+t.Cols() > t.LD || uCol+u.Cols() > u.LD
	return wraps || tCol < uCol+u.Cols() && uCol < tCol+t.Cols()
}

// view returns a view of t's root. Its name distinguishes it from other views in dumps.
func (t *Tensor) view(name string, offset, ld int, shape ...int) *Tensor {
	return &Tensor{
		Name: name, DType: t.DType, Shape: shape, Class: t.Class,
		Scale: t.Scale, Block: t.Block, Outer: t.Outer, Expand: t.Expand,
		Base: t.Root(), Offset: t.Offset + offset, LD: ld,
	}
}

// RowRange returns a view of rows [from, from+n) of a matrix, with their scales. A view that
// begins inside a block of several rows has no scale, so that programs refuse it.
func (t *Tensor) RowRange(from, n int) *Tensor {
	v := t.view(fmt.Sprintf("%s[%d:%d]", t.Name, from, from+n), from*t.LD, t.LD, n, t.Cols())
	switch rows := t.Block.Rows; {
	case rows == 0 || t.Scale == nil:
	case from%rows != 0:
		v.Scale = nil
	default:
		v.Scale = t.Scale.RowRange(from/rows, (n+rows-1)/rows)
	}
	return v
}

// Slice returns a named view of elements [from, from+n) of a contiguous tensor as a
// vector: it gives one entry of a packed tensor a stable name.
func (t *Tensor) Slice(name string, from, n int) *Tensor {
	return t.view(name, from, n, n)
}

// Columns returns a named view of columns [from, from+n) of every row.
func (t *Tensor) Columns(name string, from, n int) *Tensor {
	return t.view(name, from, t.LD, t.Rows(), n)
}

// Regroup returns a view of a contiguous tensor with rows of cols elements: [tokens, heads·n]
// as [tokens·heads, n]. cols divides the number of elements, and the tensor has no block scales.
func (t *Tensor) Regroup(cols int) *Tensor {
	rows := t.Elems() / cols
	return t.view(fmt.Sprintf("%s[%dx%d]", t.Name, rows, cols), 0, cols, rows, cols)
}

// Codes returns a view of the elements with one, a constant 1, in place of their scales, for an op that
// moves them.
func (t *Tensor) Codes(one *Tensor) *Tensor {
	v := t.view(t.Name+".codes", 0, t.LD, t.Shape...)
	v.Scale, v.Block, v.Outer, v.Expand = one, PerTensor, nil, false
	return v
}

// String returns the form used in dumps and errors: name:dtype[shape].
func (t *Tensor) String() string {
	return fmt.Sprintf("%s:%s%s", t.Name, t.DType, shapeString(t.Shape))
}

func shapeString(shape []int) string {
	return strings.ReplaceAll(fmt.Sprint(shape), " ", ", ")
}

// ScaleElems returns the number of elements that the scale of t must have.
func (t *Tensor) ScaleElems() int {
	rows, cols := t.Block.ScaleShape(t.Rows(), t.Cols())
	if t.Expand {
		return rows * cols * fp8.ExpansionElems
	}
	return rows * cols
}

// validate checks format, shape, known value and view.
func (t *Tensor) validate() error {
	if t.DType.Bytes(2) == 0 {
		return fmt.Errorf("tensor %s has no format", t.Name)
	}
	if len(t.Shape) == 0 {
		return fmt.Errorf("tensor %s has no shape", t.Name)
	}
	if t.DType.Size() == 0 && (t.Cols()%2 != 0 || t.LD%2 != 0 || t.Offset%2 != 0) {
		return fmt.Errorf("tensor %s is %s, of which a byte holds two elements: columns, LD and Offset must be even", t.Name, t)
	}
	elems := 1
	for _, d := range t.Shape {
		if d <= 0 || elems > maxElems/d {
			return fmt.Errorf("tensor %s has the shape %s: every dimension must be positive and the product below 2^48", t.Name, shapeString(t.Shape))
		}
		elems *= d
	}
	if t.Value != 0 && t.Class != Input {
		return fmt.Errorf("tensor %s has the known value %v: only an input can have one", t.Name, t.Value)
	}
	if t.Base != nil {
		base := t.Base.Elems()
		if from, to := t.span(); t.Offset < 0 || t.LD < t.Cols() && t.Rows() > 1 || to > base || to < from {
			return fmt.Errorf("view %s reaches outside %s", t, t.Base)
		}
	}
	return nil
}

// maxElems keeps every byte count and index within int64.
const maxElems = 1 << 48

// validateScale checks the scale when an op uses the tensor, because the scale is
// usually attached after the tensor is declared.
func (t *Tensor) validateScale() error {
	if t.Scale == nil {
		if t.DType.IsQuantized() {
			return fmt.Errorf("%s has no scale: a quantized tensor needs one, even if it is a constant 1", t)
		}
		return nil
	}
	if n := t.ScaleElems(); t.Scale.Elems() != n {
		return fmt.Errorf("the scale %s of %s must have %d elements (block %s)", t.Scale, t, n, t.Block)
	}
	if d := t.Scale.DType; d != fp8.F32 && (d.Format().Bits > 8 || d.Size() == 0 || !d.HasNaN()) {
		return fmt.Errorf("the scale %s of %s must be fp32, e8m0 or another format of five to eight bits that has NaN, such as e4m3", t.Scale, t)
	}
	if t.Outer != nil && (t.Outer.DType != fp8.F32 || t.Outer.Elems() != 1) {
		return fmt.Errorf("the outer scale %s of %s must be fp32[1]", t.Outer, t)
	}
	return nil
}
