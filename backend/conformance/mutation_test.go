package conformance

import (
	"context"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

// A backend that ignores a setting or an optional operand must fail some case. The test
// mutates the programs of the backend under test: it changes each plain field and drops
// each optional operand, one at a time.
func TestEverySettingMatters(t *testing.T) {
	caught := map[string]bool{} // "MatMul.TransA": whether a case failed
	for c := range Cases() {
		for i, n := range c.fixtures(backend.Spec{})[0].p.Nodes() {
			for _, field := range mutable(n.Op) {
				key := reflect.TypeOf(n.Op).Elem().Name() + "." + field
				if caught[key] || reflect.DeepEqual(mutate(n.Op, field), n.Op) {
					continue
				}
				accepted, err := c.runMutated(t.Context(), i, field)
				if accepted {
					caught[key] = err != nil
				}
			}
		}
	}
	// Backend ref ignores Accum and Used.
	delete(caught, "MatMul.Accum")
	delete(caught, "MatMul.Used")
	var missed []string
	for key, noticed := range caught {
		if !noticed {
			missed = append(missed, key)
		}
	}
	require.Empty(t, missed, "no case fails when these fields change")
	require.Greater(t, len(caught), 70)
}

// runMutated runs the case with one field of node i changed. accepted is false
// if the program is not valid with the change.
func (c Case) runMutated(ctx context.Context, i int, field string) (accepted bool, err error) {
	accepted = true
	d, remove := lowering(func(_ backend.Spec, list []*backend.Program) ([]*backend.Program, error) {
		p := list[0]
		q := p.Vars().Program(p.Name())
		for j, n := range p.Nodes() {
			op := n.Op
			if j == i {
				op = mutate(op, field)
			}
			q.Add(op)
		}
		accepted = accepted && len(p.Temps()) == 0 && q.Err() == nil
		return []*backend.Program{q}, q.Err()
	})
	defer remove()
	err = c.Run(ctx, d, "")
	return accepted, err
}

// mutable lists the fields of op that mutate changes. It leaves out a cast's Transpose,
// which must fit the shapes, and Control, which Program.Add requires.
func mutable(op backend.Op) (fields []string) {
	v := reflect.ValueOf(op).Elem()
	for i := range v.NumField() {
		f := v.Type().Field(i)
		switch value := v.Field(i).Interface().(type) {
		case []backend.Cast:
			for _, name := range []string{"Scale", "Amax", "Rounding", "Tokens", "Stream", "Limit", "Pow2"} {
				fields = append(fields, f.Name+"."+name)
			}
		case *backend.Tensor:
			if value != nil {
				fields = append(fields, f.Name)
			}
		case []*backend.Tensor:
		default:
			if f.Name == "Peer" {
				continue // a rank that waits for the wrong one waits for ever
			}
			fields = append(fields, f.Name)
		}
	}
	return fields
}

// mutate copies op with one field changed.
func mutate(op backend.Op, field string) backend.Op {
	v := reflect.New(reflect.TypeOf(op).Elem())
	v.Elem().Set(reflect.ValueOf(op).Elem())
	for i := range v.Elem().NumField() {
		f, name := v.Elem().Field(i), v.Elem().Type().Field(i).Name
		if casts, ok := f.Interface().([]backend.Cast); ok {
			changed := append([]backend.Cast(nil), casts...)
			for j := range changed {
				c := reflect.ValueOf(&changed[j]).Elem()
				for k := range c.NumField() {
					if field == name+"."+c.Type().Field(k).Name {
						change(c.Field(k))
					}
				}
			}
			f.Set(reflect.ValueOf(changed))
		} else if field == name {
			change(f)
		}
	}
	return v.Interface().(backend.Op)
}

func change(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.SetZero()
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Uint8:
		v.SetUint(1 - min(1, v.Uint()))
	case reflect.Uint16:
		v.SetUint(v.Uint() ^ 2)
	case reflect.Int:
		v.SetInt(1)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(1.5*v.Float() + 0.25)
	}
}
