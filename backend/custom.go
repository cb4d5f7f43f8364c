package backend

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
)

// Custom makes a struct of another package an op. Embed it by value and implement
// CustomOp. The other fields follow the rules of this package's ops: operands are tagged
// *Tensor, []*Tensor or []Cast fields, settings are exported booleans, numbers and
// strings. Program.Add refuses other fields, because every pass over programs (rename,
// clone, dump, hash, Unfuse, RecomputeForward) reads the fields alone.
//
//	type SquaredReLU struct {
//		backend.Custom
//		X   *backend.Tensor `op:"in"`
//		Out []backend.Cast  `op:"cast"`
//	}
//
// A dump names a custom op by its import path and type. The hash of a program does not
// include Go code: an op that computes other numbers needs another type or setting.
// It includes the CUDA source of a Loop.
type Custom struct{}

func (*Custom) check() error {
	return errors.New("the type embeds backend.Custom without the methods of backend.CustomOp: implement Check and Reference")
}

// CustomOp is an op of another package. Backend ref runs Reference, emu the loop of
// a Looped op, cuda a loop with CUDA source. Backends refuse the custom ops that they
// cannot run with ErrUnsupported.
type CustomOp interface {
	Op
	// Check checks shapes, formats and settings. Operands are not nil, unless optional.
	Check(c *Check)
	// Reference computes the op in float64. It is the op's definition: package
	// conformance compares every backend with it.
	Reference(a Arguments)
}

// Arguments gives an op's Reference access to its operands. All values are row-major.
// An error, such as a tensor that is not an operand, stops the program after Reference.
type Arguments interface {
	// Read returns a copy of an operand's values with its scale applied.
	Read(t *Tensor) []float64
	// Store rounds values to nearest even in the format of t, without a scale.
	Store(t *Tensor, values []float64)
	// Cast stores a result with cols columns through its casts.
	Cast(casts []Cast, result []float64, cols int)
}

// WithFLOPs is an op with GEMMs.
type WithFLOPs interface {
	Op
	// FLOPs returns the number of multiplications and additions of the GEMMs.
	FLOPs() int64
}

// Check keeps the first error of a custom op's check. field names the operand in the
// error.
type Check struct{ checker }

// That requires ok. The error is formatted as by fmt.Errorf.
func (c *Check) That(ok bool, format string, args ...any) { c.that(ok, format, args...) }

// Matrix requires a shape of rows × cols. All dimensions but the last count as rows.
func (c *Check) Matrix(field string, t *Tensor, rows, cols int) { c.matrix(field, t, rows, cols) }

// Vector requires n contiguous F32 elements without a scale.
func (c *Check) Vector(field string, t *Tensor, n int) { c.vector(field, t, n) }

// Plain requires F32, BF16 or F16 without a scale.
func (c *Check) Plain(name string, t *Tensor) { c.plain(field{name, t}) }

// Casts requires at least one cast, and casts that can store a result of rows × cols.
func (c *Check) Casts(field string, casts []Cast, rows, cols int) {
	c.casts(field, casts, rows, cols)
}

// checkOp checks an op whose fields and operands are valid.
func checkOp(op Op, operands []Operand) error {
	custom, ok := op.(CustomOp)
	if !ok {
		return op.check()
	}
	var c Check
	if custom.Check(&c); c.err != nil {
		return c.err
	}
	if looped, ok := op.(Looped); ok {
		return checkLoop(looped.Loop(), operands)
	}
	return nil
}

func flopsOf(op Op) int64 {
	if op, ok := op.(WithFLOPs); ok {
		return op.FLOPs()
	}
	return 0
}

var (
	customType = reflect.TypeFor[Custom]()
	groupType  = reflect.TypeFor[Group]()
	operandTag = regexp.MustCompile(`^(?:in|out|inout)(?:,optional)?(?:,(?:in|inout)=([A-Z]\w*))?$`)
)

// checkFields checks that op points to a struct whose fields are operands and plain
// values.
func checkFields(op Op) error {
	v := reflect.ValueOf(op)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return fmt.Errorf("the op is %#v, expected a pointer to a struct", op)
	}
	typ := v.Type().Elem()
	for i := range typ.NumField() {
		if err := checkField(typ, typ.Field(i)); err != nil {
			return err
		}
	}
	return nil
}

func checkField(typ reflect.Type, f reflect.StructField) error {
	tag, tagged := f.Tag.Lookup("op")
	switch {
	case f.Anonymous && f.Type == customType:
	case !f.IsExported():
		return fmt.Errorf("field %s is not exported, so programs cannot copy or dump it", f.Name)
	case f.Type == tensorType || f.Type == tensorsType:
		match := operandTag.FindStringSubmatch(tag)
		if match == nil {
			return fmt.Errorf("field %s has the tag op:%q, expected in, out or inout, and optional or a flag", f.Name, tag)
		}
		if flag, ok := typ.FieldByName(match[1]); match[1] != "" && (!ok || flag.Type.Kind() != reflect.Bool) {
			return fmt.Errorf("field %s has the tag op:%q, but %s is not a boolean field", f.Name, tag, match[1])
		}
	case f.Type == castType || f.Type == castsType:
		if tag != "cast" {
			return fmt.Errorf("field %s has the tag op:%q, expected cast", f.Name, tag)
		}
	case tagged || !plainKind(f.Type.Kind()) && f.Type != groupType:
		return fmt.Errorf("field %s is a %s: operands are tagged *Tensor, []*Tensor or []Cast fields, settings are booleans, numbers, strings or a Group", f.Name, f.Type)
	}
	return nil
}

func plainKind(k reflect.Kind) bool {
	return k >= reflect.Bool && k <= reflect.Float64 && k != reflect.Uintptr || k == reflect.String
}
