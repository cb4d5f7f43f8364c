//go:build cuda && cgo && linux

package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/data"
	"octet/train"
)

// What plan says is what the driver hands out, to the byte, and all of it comes
// back.
func TestMemoryIsAsPlanned(t *testing.T) {
	standIns(t)
	driver, _, err := backend.Find("cuda")
	require.NoError(t, err)
	for _, recipe := range []string{"bf16", "fp8-smooth"} {
		t.Run(recipe, func(t *testing.T) {
			c := small(recipe)
			j, err := train.NewJob(c, forDevice(t))
			require.NoError(t, err)
			programs, err := j.Lowered(driver, forDevice(t))
			require.NoError(t, err)
			m, err := j.MemoryOf(driver, forDevice(t), programs)
			require.NoError(t, err)

			list, err := open("", backend.Options{})
			require.NoError(t, err)
			d := list[0].(*device)
			usage := func() backend.Usage {
				u, err := d.Usage()
				require.NoError(t, err)
				require.Equal(t, int64(80<<30), u.Total)
				require.Zero(t, u.Outside(), "nothing that is not counted")
				return u
			}
			before := usage().Used
			require.Zero(t, before)
			tr, err := train.NewTrainer(j, &data.Corpus{Train: data.Text(make([]byte, 4096))}, list)
			require.NoError(t, err)
			t.Logf("%+v: %d bytes", m.Beside, usage().Used)
			require.Equal(t, m.Total(), usage().Used)
			require.NoError(t, tr.Init(t.Context()))
			_, err = tr.Next(t.Context())
			require.NoError(t, err)
			require.Equal(t, m.Total(), usage().Used, "nothing more in a step")

			// Line by line.
			shares := map[string]int64{}
			for _, g := range m.Beside {
				shares[g.Name] = g.N
			}
			size, err := measure(backend.MakePlan(align, backend.PerOp, programs...), programs)
			require.NoError(t, err)
			require.Equal(t, m.Arena, size.temps)
			require.Equal(t, map[string]int64{
				"cuBLASLt's workspace": 32 << 20, "scratch of kernels": size.scratch, "tables of kernels": size.tables,
				"alignment": m.Total() - size.total() - sum(m.Persistent),
			}, shares)
			require.Positive(t, size.scratch)
			require.Positive(t, size.tables)
			require.NoError(t, d.Close())
			free, total, err := d.gpu.Memory()
			require.NoError(t, err)
			require.Equal(t, total, free)
		})
	}
}

func sum(groups []train.Group) (n int64) {
	for _, g := range groups {
		n += g.N
	}
	return n
}
