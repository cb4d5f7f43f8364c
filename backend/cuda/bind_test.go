package cuda

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
	"octet/csrc/libcuda/kernels"
	"octet/train"
)

var update = flag.Bool("update", false, "write the golden files")

// paperBackend binds programs and passes their calls to bound, without a device.
type paperBackend struct {
	backend.Backend
	ranks int
	bound func(*backend.Node, []call)
}

var errBound = errors.New("bound")

func (paperBackend) Write(*backend.Tensor, []byte) error { return nil }
func (paperBackend) Close() error                        { return nil }

func (p paperBackend) Load(programs ...*backend.Program) ([]backend.Executable, error) {
	b := binder{address: newMap().of, ranks: p.ranks, scratchAt: 1 << 41, tableAt: 1 << 42}
	list, err := b.bindAll(programs)
	if err != nil {
		return nil, err
	}
	for i, program := range programs {
		for j, n := range program.Nodes() {
			p.bound(n, list[i][j])
		}
	}
	return nil, errBound
}

// addresses assigns every tensor an address from which its name can be found.
type addresses struct {
	next uint64
	at   map[*backend.Tensor]uint64
	name map[uint64]string
}

func newMap() *addresses {
	return &addresses{next: 1 << 40, at: map[*backend.Tensor]uint64{}, name: map[uint64]string{}}
}

func (m *addresses) of(t *backend.Tensor) uint64 {
	root := t.Root()
	if m.at[root] == 0 {
		m.at[root] = m.next
		m.next += uint64(backend.Aligned(root.Bytes(), align)) + align
	}
	at := m.at[root] + uint64(t.DType.Bytes(t.Offset))
	m.name[at] = t.Name
	return at
}

// Every op of the set is bound in at least one case, and every bound kernel exists.
func TestEveryOpBindsOrIsRefused(t *testing.T) {
	bound, refused := map[reflect.Type]bool{}, map[string]bool{}
	var mu sync.Mutex // of bound: the ranks of a case load side by side
	d := backend.Driver{
		Name: "paper", Spec: spec, Lower: lower,
		Open: func(_ string, o backend.Options) (backend.Backend, error) {
			return paperBackend{ranks: o.Group.Size(), bound: func(n *backend.Node, calls []call) {
				mu.Lock()
				bound[reflect.TypeOf(n.Op)] = true
				mu.Unlock()
				require.NotEmpty(t, calls, "%s", n)
				for _, c := range calls {
					if c.launch == nil {
						continue
					}
					l := c.launch
					source := l.source.text // of a Loop
					if source == "" {
						source = kernels.Sources()[l.source.name]
					}
					require.Contains(t, source, l.kernel, "%s", n)
					require.True(t, l.block > 0 && l.block <= 1024 && l.block%32 == 0, "%s: %+v", n, l)
					require.True(t, l.grid[0] > 0 && l.grid[1] > 0 && l.grid[2] > 0 && l.grid[1] < 1<<16 && l.grid[2] < 1<<16, "%s: %+v", n, l)
				}
			}}, nil
		},
	}
	for c := range conformance.Cases() {
		err := c.Run(t.Context(), d, "")
		if errors.Is(err, backend.ErrUnsupported) {
			op, _, _ := strings.Cut(c.Name, "/")
			if strings.Contains(err.Error(), "mixtures of experts") {
				refused[op] = true
			}
			byFormat := slices.ContainsFunc([]string{"fp16", "the kernels lack"}, func(s string) bool { return strings.Contains(err.Error(), s) })
			require.True(t, op == "matmul" || byFormat, "%s: %v", c.Name, err)
			require.NotContains(t, err.Error(), "\n")
			continue
		}
		require.ErrorIs(t, err, errBound, c.Name)
	}
	for _, op := range backend.Ops() {
		if name := strings.ToLower(reflect.TypeOf(op).Elem().Name()); refused[name] {
			require.Contains(t, []string{"route", "routegrad", "gather", "combine", "combinegrad"}, name)
			continue
		}
		require.True(t, bound[reflect.TypeOf(op)], "%T: no conformance case of it was bound: it needs a case, a line in ops.go, and its launches in package kernels", op)
	}
}

// The golden file holds the arguments of a layer's calls, word by word: kernels read them
// by position, so an accidental change must show. Run with -update after an intended
// change.
func TestLaunchesOfALayer(t *testing.T) {
	c := small("fp8-smooth")
	c.Train.HealthEvery = 0
	s := forDevice(t)
	j, err := train.NewJob(c, s)
	require.NoError(t, err)
	programs, err := lower(s, j.Programs())
	require.NoError(t, err)
	m := newMap()
	b := binder{address: m.of, scratchAt: 1 << 41, tableAt: 1 << 42}
	m.name[1<<41] = "SCRATCH"
	var text strings.Builder
	for _, p := range programs {
		if p.Name() != "micro.last" && p.Name() != "update" {
			continue
		}
		for _, n := range p.Nodes() {
			if strings.HasPrefix(n.Path(), "layers.1") || p.Name() == "micro.last" && !strings.HasPrefix(n.Block, "layers.0") {
				continue
			}
			calls, err := b.bind(n)
			require.NoError(t, err)
			fmt.Fprintf(&text, "%s\n", n.Path())
			for _, c := range calls {
				fmt.Fprintf(&text, "\t%s\n", c.text(m))
			}
		}
	}
	golden := filepath.Join("testdata", "layer.txt")
	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(text.String()), 0o666))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, strings.ReplaceAll(string(want), "\r\n", "\n"), text.String())
}

// text formats a call with names instead of addresses.
func (c call) text(m *addresses) string {
	word := func(w uint64) string {
		switch name, ok := m.name[w]; {
		case ok:
			return name
		case w >= 1<<42 && w < 1<<43:
			return fmt.Sprintf("TABLE+%d", w-1<<42)
		case w < 1<<20:
			return fmt.Sprint(w)
		}
		return fmt.Sprintf("%#x", w)
	}
	if p := c.gemm; p != nil {
		of := func(x matrix) string {
			return fmt.Sprintf("%s:%s/%d×%s", word(x.address), x.dtype, x.ld, word(x.scale))
		}
		return fmt.Sprintf("gemm %d×%d×%d %s t=%v · %s t=%v + %v·%s = %s fast=%v", p.m, p.n, p.k, of(p.a), p.transA, of(p.b), p.transB, p.beta, of(p.c), of(p.d), p.fast)
	}
	var words []string
	for _, w := range c.launch.args {
		words = append(words, word(w))
	}
	return fmt.Sprintf("%s %v×%d +%d: %s", c.launch.kernel, c.launch.grid, c.launch.block, c.launch.shared, strings.Join(words, " "))
}
