package backend

import (
	"fmt"
	"reflect"
	"strings"
)

// Access says what an op does with an operand.
type Access uint8

const (
	In Access = iota
	Out
	InOut
)

var accessNames = [...]string{"in", "out", "inout"}

func (a Access) String() string { return accessNames[a] }

// Operand is one tensor of an op and the field that names it.
type Operand struct {
	Tensor *Tensor
	Access Access
	Field  string // "A", "Out[1].Scale"; "A.Scale" for the scale that travels with A
}

// Operand fields carry the tag op:"in", "out" or "inout"; ",optional" allows
// nil, and ",inout=Flag" makes it an inout, ",in=Flag" an in, when the op's
// boolean field Flag is set. The tag op:"cast" marks Cast and []Cast fields. All other
// fields are plain comparable values. The rules are read from the struct once
// per op, when it is added, and every pass (rename, clone, dump, hash) uses
// this one walk.
func collectOperands(op Op) ([]Operand, error) {
	var list []Operand
	err := walkOperands(op, func(field string, access Access, optional bool, slot **Tensor) error {
		t := *slot
		if t == nil {
			if optional {
				return nil
			}
			return fmt.Errorf("operand %s is missing", field)
		}
		list = append(list, Operand{t, access, field})
		if t.Scale != nil && (access != Out || t.Block == PerTensor) {
			// The factor is read with the codes, and read when codes are
			// written: who computes a scale lists it as an operand itself.
			// Scales by block are computed by who writes the codes.
			list = append(list, Operand{t.Scale, In, field + ".Scale"})
		}
		return nil
	})
	return list, err
}

// walkOperands calls visit for every tensor slot of op in field order.
func walkOperands(op Op, visit func(field string, access Access, optional bool, slot **Tensor) error) error {
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
				slot := v.Field(i).Index(j).Addr().Interface().(**Tensor)
				if err := visit(fmt.Sprintf("%s[%d]", name, j), access, optional, slot); err != nil {
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

// cloneOp copies op with every operand replaced by rename(operand). A tensor
// that rename returns unchanged is shared with the original.
func cloneOp(op Op, rename func(*Tensor) *Tensor) Op {
	src := reflect.ValueOf(op).Elem()
	dst := reflect.New(src.Type())
	dst.Elem().Set(src)
	for i := range src.NumField() {
		if f := dst.Elem().Field(i); f.Kind() == reflect.Slice {
			f.Set(reflect.AppendSlice(reflect.MakeSlice(f.Type(), 0, f.Len()), f))
		}
	}
	clone := dst.Interface().(Op)
	_ = walkOperands(clone, func(_ string, _ Access, _ bool, slot **Tensor) error {
		if *slot != nil {
			*slot = rename(*slot)
		}
		return nil
	})
	return clone
}

// opName is the op's lower-case name, as errors and profiles print it.
func opName(op Op) string { return strings.ToLower(opType(op)) }

// opType is the op's name in Go, as dumps print it.
func opType(op Op) string { return reflect.TypeOf(op).Elem().Name() }
