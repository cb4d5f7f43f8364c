package emu

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// bestOfAll is taskCut.best without its one shortcut: it looks at every number of
// parts, those that make them no smaller included.
func (c *taskCut) bestOfAll() (slabs, panels int) {
	best := 0
	for across := parts(c.panels, c.mostPanels); across <= c.panels; across++ {
		q := parts(c.panels, across)
		least := min(c.slabs, parts(c.fewest, q))
		if best > 0 && least*q < c.fewest {
			break
		}
		blocks := parts(c.panels, q)
		for down := parts(c.slabs, max(least, c.mostSlabs)); down <= c.slabs; down++ {
			s := parts(c.slabs, down)
			if best > 0 && (s < least || parts(c.slabs, s)*blocks > 8*c.workers && s < c.mostSlabs) {
				break
			}
			tasks := parts(parts(c.slabs, s)*blocks, c.workers)
			packs := tasks
			if c.keepsB {
				packs = parts(blocks, c.workers)
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
			mostSlabs: 1 + r.IntN(1<<r.IntN(7)), mostPanels: 1 + r.IntN(1<<r.IntN(8)),
			fewest: 1 + r.IntN(1<<r.IntN(7)), workers: 1 + r.IntN(16), keepsB: r.IntN(2) == 0,
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
			for want <= n && parts(n, want) == parts(n, count) {
				want++
			}
			require.Equal(t, want, finer(n, count), "%d in %d", n, count)
		}
	}
}
