package nn

import (
	"fmt"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// Cache holds the keys and values of all layers: Stash [batch·positions, kv width]. In a format of
// eight bits each head of each position has a scale in FP32, from its largest magnitude.
type Cache struct{ K, V []*backend.Tensor }

// NewCache declares a cache for batch sequences of up to positions tokens each, in a format of eight
// bits or in the recipe's compute format, which 0 stands for.
func (b *Base) NewCache(batch, positions int, format fp8.DType) *Cache {
	c := &Cache{}
	if format == 0 {
		format = b.Recipe.Compute
	}
	for i, a := range b.attentions {
		for _, list := range []struct {
			name string
			to   *[]*backend.Tensor
		}{{"k", &c.K}, {"v", &c.V}} {
			t := b.Vars.Tensor(backend.Stash, fmt.Sprintf("cache.%s.%d", list.name, i), format, batch*positions, a.kvHeads*a.headDim)
			if format.IsQuantized() {
				a.cacheCopy(format).declareScale(t, func(name string, d fp8.DType, shape ...int) *backend.Tensor {
					return b.Vars.Tensor(backend.Stash, name, d, shape...)
				})
			}
			*list.to = append(*list.to, t)
		}
	}
	return c
}

// cacheCopy describes keys or values in a cache of a quantized format.
func (a *Attention) cacheCopy(format fp8.DType) Copy {
	return Copy{Cast: recipe.Cast{DType: format, Scale: recipe.Exact}, Block: backend.ScaleBlock{Rows: 1, Cols: a.headDim}}
}

// cached appends x, keys or values, to the cache and returns what attention reads: the cache, or its
// values in the compute format.
func (a *Attention) cached(p *Pass, name string, x, cache *backend.Tensor) *backend.Tensor {
	write := func(x, cache *backend.Tensor) {
		p.Add(&backend.CacheWrite{X: x, Cache: cache, Control: p.Control, Batch: p.Batch})
	}
	if !cache.DType.IsQuantized() {
		write(x, cache)
		return cache
	}
	codes, form := p.Temp(name+".codes", cache.DType, x.Rows(), x.Cols()), a.cacheCopy(cache.DType)
	form.declareScale(codes, p.Temp)
	p.Add(&backend.Quantize{X: x, Out: []backend.Cast{form.blockCast(codes)}})
	write(codes.Codes(p.scales.one), cache.Codes(p.scales.one))
	write(codes.Scale, cache.Scale)
	all := p.Temp(name+".all", x.DType, cache.Rows(), cache.Cols())
	p.Add(&backend.Quantize{X: cache, Out: []backend.Cast{{Out: all}}})
	return all
}
