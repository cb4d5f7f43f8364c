//go:build cuda && cgo && linux

package cuda

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/world"
	"octet/csrc/standin"
	"octet/data"
	"octet/train"
)

// The planned memory is what the driver allocates, to the byte and on every GPU, and all
// of it is freed. A real driver allocates pages and memory of its own, so there only
// Usage's Allocated is compared.
func TestMemoryIsAsPlanned(t *testing.T) {
	for _, c := range []struct {
		recipe string
		ranks  int
	}{{"bf16", 1}, {"fp8-smooth", 1}, {"fp8-smooth", 2}} {
		t.Run(fmt.Sprint(c.recipe, " on ", c.ranks), func(t *testing.T) {
			standIns(t)
			standin.Set(t, "STANDIN_GPUS", fmt.Sprint(c.ranks))
			config := small(c.recipe)
			config.Train.Ranks = c.ranks
			j, err := train.NewJob(config, forDevice(t))
			require.NoError(t, err)
			lowered, err := backend.Lower(forDevice(t), j.Programs()...)
			require.NoError(t, err)
			m, err := j.MemoryOf(forDevice(t), lowered...)
			require.NoError(t, err)

			groups := world.Local(c.ranks, time.Minute)
			list, trainers := make([]backend.Backend, c.ranks), make([]*train.Trainer, c.ranks)
			require.NoError(t, world.Each(groups, func(g *world.Group) (err error) {
				list[g.Rank()], err = open("", backend.Options{Group: g})
				return err
			}))
			expect := func(used int64) {
				t.Helper()
				for _, b := range list {
					u, err := b.(*device).Usage()
					require.NoError(t, err)
					require.Equal(t, used, u.Allocated)
					if standin.Hardware() > 0 {
						continue
					}
					require.Equal(t, int64(80<<30), u.Total)
					require.Zero(t, u.Outside(), "all memory is counted")
					require.Equal(t, used, u.Used)
				}
			}
			expect(0)
			require.NoError(t, world.Each(groups, func(g *world.Group) error {
				own, err := train.NewJob(config, forDevice(t))
				if err == nil {
					trainers[g.Rank()], err = train.NewTrainer(own, &data.Corpus{Train: data.Text(make([]byte, 4096))}, list[g.Rank()], g)
				}
				return err
			}))
			t.Logf("%+v: %d bytes", m.Beside, m.Total())
			expect(m.Total())
			require.NoError(t, world.Each(groups, func(g *world.Group) error {
				tr := trainers[g.Rank()]
				if err := tr.Init(t.Context()); err != nil {
					return err
				}
				_, err := tr.Next(t.Context())
				return err
			}))
			expect(m.Total()) // a step allocates nothing

			// Each share of the plan.
			shares := map[string]int64{}
			for _, g := range m.Beside {
				shares[g.Name] = g.N
			}
			size, err := measure(backend.MakePlan(align, backend.PerOp, lowered...), lowered)
			require.NoError(t, err)
			require.Equal(t, m.Arena, size.temps)
			require.Equal(t, map[string]int64{
				"cuBLASLt's workspace": 32 << 20, "scratch of kernels": size.scratch, "tables of kernels": size.tables,
				"alignment": m.Total() - size.total() - sum(m.Persistent),
			}, shares)
			require.Positive(t, size.scratch)
			require.Positive(t, size.tables)
			for _, b := range list {
				require.NoError(t, b.Close())
			}
			if standin.Hardware() > 0 {
				return
			}
			for _, b := range list {
				free, total, err := b.(*device).gpu.Memory()
				require.NoError(t, err)
				require.Equal(t, total, free)
			}
		})
	}
}

func sum(groups []train.Group) (n int64) {
	for _, g := range groups {
		n += g.N
	}
	return n
}
