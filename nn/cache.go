package nn

import (
	"fmt"

	"octet/backend"
)

// Cache holds the keys and values of all layers: Stash [batch·positions, kv width].
type Cache struct{ K, V []*backend.Tensor }

// NewCache declares a cache for batch sequences of up to positions tokens each.
func (b *Base) NewCache(batch, positions int) *Cache {
	c := &Cache{}
	for i, a := range b.attentions {
		for _, list := range []struct {
			name string
			to   *[]*backend.Tensor
		}{{"k", &c.K}, {"v", &c.V}} {
			*list.to = append(*list.to, b.Vars.Tensor(backend.Stash,
				fmt.Sprintf("cache.%s.%d", list.name, i), b.Recipe.Compute, batch*positions, a.kvHeads*a.headDim))
		}
	}
	return c
}
