package emu

import (
	"context"
	"fmt"

	"octet/backend"
)

var _ = implementOp(row{}, func(b *binder, _ *backend.Node, o *backend.CacheWrite) (kernel, error) {
	return b.cacheWrite(o), nil
})

// cacheWrite returns a kernel that fails if the rows reach beyond the cache. It checks
// at run time because the host sets the position.
func (b *binder) cacheWrite(o *backend.CacheWrite) kernel {
	size := o.X.DType.Size()
	x, cache := b.bytes(o.X), b.bytes(o.Cache)
	stepX, stepCache, width := o.X.LD*size, o.Cache.LD*size, o.X.Cols()*size
	n, places := o.X.Rows()/o.Batch, o.Cache.Rows()/o.Batch
	words := b.i32(o.Control)
	name := o.Cache.String()
	return func(context.Context) error {
		position := int(backend.ControlFrom(words).Position)
		if position < 0 || position > places-n {
			return fmt.Errorf("%d rows from position %d on do not fit into the %d positions of cache %s: generate fewer tokens or make the cache longer", n, position, places, name)
		}
		for s := range o.Batch {
			for i := range n {
				from, to := (s*n+i)*stepX, (s*places+position+i)*stepCache
				copy(cache[to:to+width], x[from:from+width])
			}
		}
		return nil
	}
}
