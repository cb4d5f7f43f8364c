package conformance

import (
	"context"
	"reflect"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/ref"
)

func TestReferenceConformsToItself(t *testing.T) {
	names := map[string]bool{}
	for c := range Cases() {
		require.False(t, names[c.Name], "two cases are called %s", c.Name)
		names[c.Name] = true
		t.Run(c.Name, func(t *testing.T) { require.NoError(t, c.Run(t.Context(), ref.Driver(), "")) })
	}
}

func TestEveryOpHasACase(t *testing.T) {
	missing := map[reflect.Type]bool{}
	for _, op := range backend.Ops() {
		missing[reflect.TypeOf(op)] = true
	}
	for c := range Cases() {
		for _, b := range c.fixtures(backend.Spec{}) {
			for _, n := range b.p.Nodes() {
				delete(missing, reflect.TypeOf(n.Op))
			}
		}
	}
	require.Empty(t, missing, "add cases with the op to the file of its group, cases_*.go")
}

// idle is a backend whose programs do nothing.
type idle struct{ backend.Backend }

func (b idle) Load(programs ...*backend.Program) ([]backend.Executable, error) {
	list, err := b.Backend.Load(programs...)
	for i := range list {
		list[i] = idleExecutable{list[i]}
	}
	return list, err
}

type idleExecutable struct{ backend.Executable }

func (idleExecutable) Run(context.Context) error { return nil }

func TestEveryCaseFailsIfOpsDoNothing(t *testing.T) {
	d := ref.Driver()
	open := d.Open
	d.Open = func(device string, o backend.Options) (backend.Backend, error) {
		b, err := open(device, o)
		return idle{b}, err
	}
	// These cases expect no change: skipped updates, and a sum over one rank.
	unchanged := regexp.MustCompile(`^((pushhistory/.*|stepmu)/skip2|adamw/.*/skip|allreduce/sum/1|allreduce/sum/group/2/1-1)$`)
	for c := range Cases() {
		if c.Run(t.Context(), d, "") == nil {
			require.Regexp(t, unchanged, c.Name, "passes on a backend that computes nothing")
		}
	}
}

// lowering registers a driver of ref with a lowering of its own, until remove is called.
func lowering(lower func(backend.Spec, []*backend.Program) ([]*backend.Program, error)) (d backend.Driver, remove func()) {
	d = ref.Driver()
	spec := d.Spec
	d.Name, d.Priority, d.Lower = "lowering", -2, lower
	d.Spec = func(device string) (backend.Spec, error) {
		s, err := spec(device)
		s.Backend = "lowering"
		return s, err
	}
	return d, backend.Register(d)
}

// A cast rounds the op's FP32 result: a separate Quantize after the op gives the same bits.
func TestUnfusedProgramsGiveTheSameBits(t *testing.T) {
	rewritten := 0
	d, remove := lowering(func(_ backend.Spec, list []*backend.Program) ([]*backend.Program, error) {
		p := list[0]
		q, err := backend.Unfuse(p, func(backend.Op) bool { return false })
		if err == nil && q.Hash() != p.Hash() {
			rewritten++
		}
		return []*backend.Program{q}, err
	})
	defer remove()
	for c := range Cases() {
		build := c.build
		c.build = func(b *fixture) {
			build(b)
			clear(b.tolerance)
		}
		require.NoError(t, c.Run(t.Context(), d, ""))
	}
	require.Greater(t, rewritten, 40)
}
