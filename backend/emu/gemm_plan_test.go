package emu

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// bestOfAll is taskCut.best without the shortcut of finer: it tries every number of parts.
func (c *taskCut) bestOfAll() (slabs, panels int) {
	best := 0
	for across := ceilDiv(c.panels, c.maxPanels); across <= c.panels; across++ {
		q := ceilDiv(c.panels, across)
		minSlabs := min(c.slabs, ceilDiv(c.minTiles, q))
		if best > 0 && minSlabs*q < c.minTiles {
			break
		}
		blocks := ceilDiv(c.panels, q)
		for down := ceilDiv(c.slabs, max(minSlabs, c.maxSlabs)); down <= c.slabs; down++ {
			s := ceilDiv(c.slabs, down)
			if best > 0 && (s < minSlabs || ceilDiv(c.slabs, s)*blocks > 8*c.workers && s < c.maxSlabs) {
				break
			}
			tasks := ceilDiv(ceilDiv(c.slabs, s)*blocks, c.workers)
			packs := tasks
			if c.keepsB {
				packs = ceilDiv(blocks, c.workers)
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
			for want <= n && ceilDiv(n, want) == ceilDiv(n, count) {
				want++
			}
			require.Equal(t, want, finer(n, count), "%d in %d", n, count)
		}
	}
}
