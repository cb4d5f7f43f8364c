package backend

import (
	"fmt"
	"iter"

	"octet/fp8"
)

// Vars holds every tensor that outlives a program: parameters, state, stash,
// inputs and outputs. Programs made from one Vars share them; a backend holds
// those of one Vars.
type Vars struct {
	byName map[string]*Tensor
	list   []*Tensor
	err    error
}

// NewVars returns an empty set.
func NewVars() *Vars { return &Vars{byName: map[string]*Tensor{}} }

// Tensor declares a persistent tensor. Names are unique in a Vars. Err and every program
// made from v return the first error.
func (v *Vars) Tensor(class Class, name string, dtype fp8.DType, shape ...int) *Tensor {
	t := &Tensor{Name: name, DType: dtype, Shape: shape, Class: class}
	if err := t.validate(); err != nil {
		v.fail(err)
		t.Shape = []int{1}
	}
	t.LD = t.Cols()
	if class == Temp {
		v.fail(fmt.Errorf("tensor %s: a temp belongs to a program, not to the variables", name))
	}
	if v.byName[name] != nil {
		v.fail(fmt.Errorf("tensor %s is declared twice", name))
	}
	v.byName[name] = t
	v.list = append(v.list, t)
	return t
}

// Lookup returns the tensor of a name; nil if there is none.
func (v *Vars) Lookup(name string) *Tensor { return v.byName[name] }

// All yields the tensors in the order of declaration.
func (v *Vars) All() iter.Seq[*Tensor] {
	return func(yield func(*Tensor) bool) {
		for _, t := range v.list {
			if !yield(t) {
				return
			}
		}
	}
}

// Err returns the first error of any declaration.
func (v *Vars) Err() error { return v.err }

func (v *Vars) fail(err error) {
	if v.err == nil {
		v.err = err
	}
}

// Program returns an empty program over the variables.
func (v *Vars) Program(name string) *Program {
	return &Program{rec: &record{
		name: name, vars: v,
		temps:   map[string]*Tensor{},
		written: map[*Tensor][]*Tensor{},
	}}
}
