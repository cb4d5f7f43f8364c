package backend

import (
	"cmp"
	"fmt"
	"strings"

	"octet/fp8"
)

// Class says who owns a tensor's bytes and how long they live. Where they
// are placed is the backend's business.
type Class uint8

const (
	Temp   Class = iota // lives inside one program; the planner gives it a place in the arena
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

// ScaleBlock says which elements of a matrix share one dequantising factor:
// tiles of Rows × Cols elements, 0 meaning the whole extent. The zero value
// is one factor for the tensor.
type ScaleBlock struct{ Rows, Cols int }

// The blocks in use in the field.
var (
	PerTensor    = ScaleBlock{0, 0}
	PerRow       = ScaleBlock{1, 0}
	PerColumn    = ScaleBlock{0, 1}
	Block1x128   = ScaleBlock{1, 128}
	Block128x128 = ScaleBlock{128, 128}
	Block1x32    = ScaleBlock{1, 32} // MX
)

// ScaleShape is the shape [rows, cols] of the scale tensor that belongs to a
// matrix of the given extent.
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

// Tensor is the description of an array; it holds no data. Identity is the
// pointer: two programs that name the same *Tensor share its bytes. Ops see
// every tensor as a row-major matrix, all dimensions but the last being rows.
type Tensor struct {
	Name  string
	DType fp8.DType
	Shape []int
	Class Class

	// Scale holds the dequantising factors (F32), which travel with the data:
	// value = code × Scale. Any tensor may have one; an FP8 tensor must.
	Scale *Tensor
	Block ScaleBlock

	// A view shares the bytes of Base: element (r, c) is Base's element
	// Offset + r·LD + c, counted in elements. Base is never itself a view.
	Base       *Tensor
	Offset, LD int

	// Value is what all elements of an Input are that the host writes once and for
	// all, so that lowering may rely on it; 0: they are not known.
	Value float32
}

// Rows is the product of all dimensions but the last.
func (t *Tensor) Rows() int {
	n := 1
	for _, d := range t.Shape[:len(t.Shape)-1] {
		n *= d
	}
	return n
}

// Cols is the last dimension.
func (t *Tensor) Cols() int { return t.Shape[len(t.Shape)-1] }

// Elems is the number of elements.
func (t *Tensor) Elems() int { return t.Rows() * t.Cols() }

// Bytes is the number of bytes that the elements take, without the gaps of a view.
func (t *Tensor) Bytes() int64 { return int64(t.Elems()) * int64(t.DType.Size()) }

// ScaleIndex is which element of Scale dequantises element i of t, both row-major.
func (t *Tensor) ScaleIndex(i int) int {
	if t.Block == PerTensor {
		return 0
	}
	rows, cols := t.Rows(), t.Cols()
	_, across := t.Block.ScaleShape(rows, cols)
	return i/cols/cmp.Or(t.Block.Rows, rows)*across + i%cols/cmp.Or(t.Block.Cols, cols)
}

// Root is the tensor that owns the bytes: Base of a view, else t.
func (t *Tensor) Root() *Tensor {
	if t.Base != nil {
		return t.Base
	}
	return t
}

// Contiguous reports whether rows follow each other without a gap.
func (t *Tensor) Contiguous() bool { return t.LD == t.Cols() || t.Rows() == 1 }

// span is the range of Root's elements that t can touch.
func (t *Tensor) span() (from, to int) {
	return t.Offset, t.Offset + (t.Rows()-1)*t.LD + t.Cols()
}

// overlaps reports whether two tensors may share an element. Views with equal
// strides are compared as rectangles, so that columns side by side do not
// overlap; others by the ranges that they span.
func (t *Tensor) overlaps(u *Tensor) bool {
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

// view is the one constructor of views. The name tells views apart in dumps.
func (t *Tensor) view(name string, offset, ld int, shape ...int) *Tensor {
	return &Tensor{
		Name: name, DType: t.DType, Shape: shape, Class: t.Class,
		Scale: t.Scale, Block: t.Block,
		Base: t.Root(), Offset: t.Offset + offset, LD: ld,
	}
}

// RowRange is the view of rows [from, from+n) of a matrix. A view of a tensor
// with one scale keeps it; a tensor with blocked scales cannot be sliced.
func (t *Tensor) RowRange(from, n int) *Tensor {
	return t.view(fmt.Sprintf("%s[%d:%d]", t.Name, from, from+n), from*t.LD, t.LD, n, t.Cols())
}

// Slice is the view of elements [from, from+n) of a contiguous tensor as a
// vector, under a name of its own: how one record of a packed tensor gets a
// stable name.
func (t *Tensor) Slice(name string, from, n int) *Tensor {
	return t.view(name, from, n, n)
}

// Columns is the view of columns [from, from+n) of every row, under a name of
// its own.
func (t *Tensor) Columns(name string, from, n int) *Tensor {
	return t.view(name, from, t.LD, t.Rows(), n)
}

// String is the form used in dumps and errors: name:dtype[shape].
func (t *Tensor) String() string {
	return fmt.Sprintf("%s:%s%s", t.Name, t.DType, shapeString(t.Shape))
}

func shapeString(shape []int) string {
	return strings.ReplaceAll(fmt.Sprint(shape), " ", ", ")
}

// validate reports what is wrong with the description itself.
func (t *Tensor) validate() error {
	if t.DType.Size() == 0 {
		return fmt.Errorf("tensor %s has no number format", t.Name)
	}
	if len(t.Shape) == 0 {
		return fmt.Errorf("tensor %s has no shape", t.Name)
	}
	elems := 1
	for _, d := range t.Shape {
		if d <= 0 || elems > maxElems/d {
			return fmt.Errorf("tensor %s has the shape %s: every dimension must be positive and the product below 2^48", t.Name, shapeString(t.Shape))
		}
		elems *= d
	}
	if t.Value != 0 && t.Class != Input {
		return fmt.Errorf("tensor %s is known to be %v, and only an input can be", t.Name, t.Value)
	}
	if t.Base != nil {
		base := t.Base.Elems()
		if from, to := t.span(); t.Offset < 0 || t.LD < t.Cols() && t.Rows() > 1 || to > base || to < from {
			return fmt.Errorf("view %s reaches outside %s", t, t.Base)
		}
	}
	return nil
}

// FitsBuffer says why n bytes of the host cannot be copied to or from t: a view that
// reaches outside of its base or has gaps between its rows, or another number of bytes.
func (t *Tensor) FitsBuffer(n int) error {
	if err := t.validate(); err != nil {
		return err
	}
	if int64(n) != t.Bytes() || !t.Contiguous() {
		return fmt.Errorf("tensor %s has %d contiguous bytes, got a buffer of %d", t, t.Bytes(), n)
	}
	return nil
}

// maxElems keeps every byte count and index comfortably inside int64.
const maxElems = 1 << 48

// validateScale is checked when an op uses the tensor, because the scale is
// usually attached after the tensor is made.
func (t *Tensor) validateScale() error {
	if t.Scale == nil {
		if t.DType.IsFP8() {
			return fmt.Errorf("%s has no scale: an FP8 tensor needs one, if only a constant 1", t)
		}
		return nil
	}
	rows, cols := t.Block.ScaleShape(t.Rows(), t.Cols())
	if t.Scale.Elems() != rows*cols {
		return fmt.Errorf("the scale %s of %s must have %d elements (block %s)", t.Scale, t, rows*cols, t.Block)
	}
	if t.Scale.DType != fp8.F32 && t.Scale.DType != fp8.E8M0 {
		return fmt.Errorf("the scale %s of %s must be fp32 or e8m0", t.Scale, t)
	}
	return nil
}
