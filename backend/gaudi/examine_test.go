package gaudi

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/train"
)

// programsOf returns the programs of a small run.
func programsOf(t *testing.T, recipe string) []*backend.Program {
	t.Helper()
	c := train.Default()
	c.Recipe, c.Model.Layers, c.Data.Seq, c.Train.MicroBatch = recipe, 1, 16, 2
	s, err := spec("gaudi2")
	require.NoError(t, err)
	j, err := train.NewJob(c, s)
	require.NoError(t, err)
	programs, err := backend.Lower(s, j.Programs()...)
	require.NoError(t, err)
	return programs
}

// refusing is a device that does not compile some kernels.
type refusing struct {
	*fake
	kernel string
	seen   map[string]int
}

func (r refusing) compile(list []program) ([]compiled, error) {
	for _, p := range list {
		if len(p.Graph.Nodes) != 1 || p.Graph.Check() != nil {
			return nil, errors.New("not a graph of one node")
		}
		r.seen[p.Graph.Nodes[0].GUID]++
		if strings.HasPrefix(p.Name, r.kernel) {
			return nil, errors.New("synFail")
		}
	}
	return r.fake.compile(list)
}

// examine tries every kernel of every unit, and names those that fail.
func TestExamine(t *testing.T) {
	programs := append(programsOf(t, "bf16"), programsOf(t, "fp8-smooth")...)
	r := refusing{newFake("gaudi2"), "fp8_gemm", map[string]int{}}
	d, err := newDevice(r, nil, deviceOptions{unit: 1})
	require.NoError(t, err)
	var list []backend.Finding
	require.True(t, examineOn(d, programs, func(f backend.Finding) bool { list = append(list, f); return true }))
	require.True(t, list[0].OK)
	require.Contains(t, list[0].Detail, "1 GiB of 3 GiB free")
	require.Equal(t, "HLML", list[1].What)
	require.True(t, list[1].Optional)
	require.Equal(t, backend.Finding{What: "HCCL", OK: true, Detail: "creates the id of a communicator"}, list[2])
	failed := 0
	for _, f := range list[3 : len(list)-1] {
		require.Equal(t, !strings.HasPrefix(f.What, "fp8_gemm_"), f.OK, f.What)
		if f.OK {
			require.Regexp(t, `^.* -> \w+ \[.*\].*, \d+ ms$`, f.Detail)
			continue
		}
		failed++
		require.Regexp(t, `^hf8 \[\d+ \d+\], hf8 \[\d+ \d+\], f32 \[1\], f32 \[1\] -> bf16 \[\d+ \d+\], \d+ ms, parameters 0[01]0[01]: synFail$|f8 `, f.Detail)
	}
	require.Positive(t, failed)
	last := list[len(list)-1]
	require.False(t, last.OK)
	require.Regexp(t, `^\d+ of \d+ compile, each in its own graph$`, last.Detail)

	c := newCutter(d.spec, false, programs...)
	for _, p := range programs {
		s, err := c.cut(p)
		require.NoError(t, err)
		for _, step := range s.steps {
			for _, n := range step.unit.graph.Nodes {
				require.Positive(t, r.seen[n.GUID], n.GUID)
			}
		}
	}
	for guid, n := range r.seen {
		require.LessOrEqual(t, n, 12, guid)
	}
	require.False(t, examineOn(d, programs, func(backend.Finding) bool { return false }))
}
