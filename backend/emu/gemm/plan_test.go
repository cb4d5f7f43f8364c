package gemm

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/emu/pool"
)

// bestOfAll is taskCut.best without the shortcut of finer: it tries every number of parts.
func (c *taskCut) bestOfAll() (slabs, panels int) {
	best := 0
	for across := pool.CeilDiv(c.panels, c.maxPanels); across <= c.panels; across++ {
		q := pool.CeilDiv(c.panels, across)
		minSlabs := min(c.slabs, pool.CeilDiv(c.minTiles, q))
		if best > 0 && minSlabs*q < c.minTiles {
			break
		}
		blocks := pool.CeilDiv(c.panels, q)
		for down := pool.CeilDiv(c.slabs, max(minSlabs, c.maxSlabs)); down <= c.slabs; down++ {
			s := pool.CeilDiv(c.slabs, down)
			if best > 0 && (s < minSlabs || pool.CeilDiv(c.slabs, s)*blocks > 8*c.workers && s < c.maxSlabs) {
				break
			}
			tasks := pool.CeilDiv(pool.CeilDiv(c.slabs, s)*blocks, c.workers)
			packs := tasks
			if c.keepsB {
				packs = pool.CeilDiv(blocks, c.workers)
			}
			cost := tasks*s*(20*q+5) + packs*16*q
			if best == 0 || cost < best {
				best, slabs, panels = cost, s, q
			}
		}
	}
	return slabs, panels
}

func TestTaskCut(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		c := taskCut{
			slabs: 1 + r.IntN(1<<r.IntN(8)), panels: 1 + r.IntN(1<<r.IntN(9)),
			maxSlabs: 1 + r.IntN(1<<r.IntN(7)), maxPanels: 1 + r.IntN(1<<r.IntN(8)),
			minTiles: 1 + r.IntN(1<<r.IntN(7)), workers: 1 + r.IntN(16), keepsB: r.IntN(2) == 0,
		}
		slabs, panels := c.best()
		wantSlabs, wantPanels := c.bestOfAll()
		require.Equal(t, [2]int{wantSlabs, wantPanels}, [2]int{slabs, panels}, "%+v", c)
	}
}

func TestFiner(t *testing.T) {
	for n := 1; n < 200; n++ {
		for count := 1; count <= n; count++ {
			want := count + 1
			for want <= n && pool.CeilDiv(n, want) == pool.CeilDiv(n, count) {
				want++
			}
			require.Equal(t, want, finer(n, count), "%d in %d", n, count)
		}
	}
}
