package backend

import (
	"fmt"
	"reflect"
	"strings"
)

// Access says whether an op reads or writes an operand.
type Access uint8

const (
	In Access = iota
	Out
	InOut
)

var accessNames = [...]string{"in", "out", "inout"}

func (a Access) String() string { return accessNames[a] }

// Operand is one tensor of an op and the field that holds it.
type Operand struct {
	Tensor *Tensor
	Access Access
	Field  string // "A", "Out[1].Scale"; "A.Scale" for the scale that travels with A
}

// FieldName returns the name of the op's field that holds the operand: "Out" for
// "Out[1].Scale".
func (o Operand) FieldName() string {
	if i := strings.IndexAny(o.Field, "[."); i >= 0 {
		return o.Field[:i]
	}
	return o.Field
}

// collectOperands lists the operands of op in the order of its fields. An operand
// field has the tag op:"in", "out" or "inout". ",optional" allows nil; ",inout=Flag"
// makes the operand inout, and ",in=Flag" in, if the op's boolean field Flag is set.
// The tag op:"cast" marks Cast and []Cast fields. All other fields are plain comparable
// values. The list is made once, when the op is added, and walkOperands serves every
// pass (rename, clone, dump, hash).
func collectOperands(op Op) ([]Operand, error) {
	var list []Operand
	err := walkOperands(op, func(field string, access Access, optional bool, tensor **Tensor) error {
		t := *tensor
		if t == nil {
			if optional {
				return nil
			}
			return fmt.Errorf("operand %s is missing", field)
		}
		list = append(list, Operand{t, access, field})
		if t.Scale != nil && (access != Out || t.Block == PerTensor) {
			// An op reads a per-tensor scale both to read and to write codes. An op
			// that computes the scale lists it as an operand of its own. Block scales
			// are computed by the op that writes the codes, so it does not read them.
			list = append(list, Operand{t.Scale, In, field + ".Scale"})
			if t.Outer != nil {
				list = append(list, Operand{t.Outer, In, field + ".Outer"})
			}
		}
		return nil
	})
	return list, err
}

// walkOperands calls visit for every tensor field of op, in field order.
func walkOperands(op Op, visit func(field string, access Access, optional bool, tensor **Tensor) error) error {
	return walkStruct(reflect.ValueOf(op).Elem(), "", visit)
}

var (
	tensorType  = reflect.TypeFor[*Tensor]()
	tensorsType = reflect.TypeFor[[]*Tensor]()
	castType    = reflect.TypeFor[Cast]()
	castsType   = reflect.TypeFor[[]Cast]()
)

func walkStruct(v reflect.Value, prefix string, visit func(string, Access, bool, **Tensor) error) error {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		tag, ok := field.Tag.Lookup("op")
		if !ok {
			continue
		}
		name := prefix + field.Name
		access, optional := parseTag(tag, v)
		switch field.Type {
		case tensorType:
			if err := visit(name, access, optional, v.Field(i).Addr().Interface().(**Tensor)); err != nil {
				return err
			}
		case tensorsType:
			for j := range v.Field(i).Len() {
				tensor := v.Field(i).Index(j).Addr().Interface().(**Tensor)
				if err := visit(fmt.Sprintf("%s[%d]", name, j), access, optional, tensor); err != nil {
					return err
				}
			}
		case castType:
			if err := walkStruct(v.Field(i), name+".", visit); err != nil {
				return err
			}
		case castsType:
			for j := range v.Field(i).Len() {
				if err := walkStruct(v.Field(i).Index(j), fmt.Sprintf("%s[%d].", name, j), visit); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func parseTag(tag string, op reflect.Value) (access Access, optional bool) {
	for part := range strings.SplitSeq(tag, ",") {
		switch kind, flag, isFlag := strings.Cut(part, "="); {
		case isFlag && !op.FieldByName(flag).Bool():
		case kind == "in":
			access = In
		case kind == "out":
			access = Out
		case kind == "inout":
			access = InOut
		case kind == "optional":
			optional = true
		}
	}
	return access, optional
}

// ReplaceOperands copies op and replaces every operand by replace(operand). The copy shares
// tensors that replace returns unchanged.
func ReplaceOperands(op Op, replace func(*Tensor) *Tensor) Op {
	src := reflect.ValueOf(op).Elem()
	dst := reflect.New(src.Type())
	dst.Elem().Set(src)
	for i := range src.NumField() {
		if f := dst.Elem().Field(i); f.Kind() == reflect.Slice {
			f.Set(reflect.AppendSlice(reflect.MakeSlice(f.Type(), 0, f.Len()), f))
		}
	}
	clone := dst.Interface().(Op)
	_ = walkOperands(clone, func(_ string, _ Access, _ bool, tensor **Tensor) error {
		if *tensor != nil {
			*tensor = replace(*tensor)
		}
		return nil
	})
	return clone
}

// opName returns the op's lower-case name, as in errors: "matmul".
func opName(op Op) string { return strings.ToLower(opType(op)) }

// opType returns the op's name in Go: "MatMul", "squared.ReLU" for a custom op.
func opType(op Op) string {
	if t := structOf(op); t.PkgPath() != customType.PkgPath() {
		return t.String()
	}
	return structOf(op).Name()
}

// opPath returns the op's name in dumps. It names a custom op by its import path, so that
// ops of different packages give different hashes.
func opPath(op Op) string {
	if t := structOf(op); t.PkgPath() != customType.PkgPath() {
		return t.PkgPath() + "." + t.Name()
	}
	return structOf(op).Name()
}

func structOf(op Op) reflect.Type {
	t := reflect.TypeOf(op)
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t // Program.Add refuses it
}
