package nn

import (
	"cmp"
	"strings"

	"octet/backend"
	"octet/recipe"
)

// This file tells callers what the layers of a model are for, so that they need no names
// of modules.

// Linears lists the linear layers, heads included, in the order of their declaration.
func (b *Base) Linears() []recipe.Layer {
	list := make([]recipe.Layer, len(b.linears))
	for i, l := range b.linears {
		list[i] = l.Layer
	}
	return list
}

// Linears lists the linear layers of the decoder, in the order of [Base.Linears]. They do
// not depend on the recipe. An empty activation counts as SwiGLU.
func (c Config) Linears() ([]recipe.Layer, error) {
	c.Activation, c.Shards = cmp.Or(c.Activation, SwiGLU), 0
	plain, err := recipe.Lookup("fp32")
	if err != nil {
		return nil, err
	}
	m, err := New(c, plain, backend.NewVars())
	if err != nil {
		return nil, err
	}
	return m.Linears(), nil
}

// WeightCopies returns, for each parameter, the persistent tensors beside its master that passes
// read: its casts with their block scales, and all rows of a sharded master.
func (b *Base) WeightCopies() map[*Param][]*backend.Tensor {
	of := map[*Param][]*backend.Tensor{}
	add := func(w *Param, t *backend.Tensor) {
		if t == nil {
			return
		}
		if t = t.Root(); t.Shard() != nil {
			t = t.Shard()
		}
		if t == w.Master {
			return
		}
		if of[w] = append(of[w], t); t.Block != backend.PerTensor {
			of[w] = append(of[w], t.Scale)
		}
	}
	for _, p := range b.Params {
		add(p, p.whole)
	}
	for _, l := range b.linears {
		for _, t := range l.cached {
			add(l.weight, t)
		}
	}
	for _, e := range b.embeddings {
		add(e.weight, e.table)
	}
	return of
}

// Parts lists the values of [Base.PartOf], in the order of a decoder.
var Parts = []string{"embedding", "attention", "mlp", "router", "norms", "head", "linear"}

// PartOf returns the kind of layer that each parameter belongs to: "linear" for a layer that
// Base.Linear declared, "embedding" for a table that a head shares.
func (b *Base) PartOf() map[*Param]string {
	of := map[*Param]string{}
	for _, p := range b.Params {
		of[p] = "norms" // the only layers with vectors, besides biases
	}
	for _, l := range b.linears {
		of[l.weight] = "linear"
	}
	for _, a := range b.attentions {
		for _, l := range []*Linear{a.q, a.k, a.v, a.o} {
			if of[l.weight] = "attention"; l.bias != nil {
				of[l.bias] = "attention"
			}
		}
	}
	for _, m := range b.mlps {
		for _, l := range []*Linear{m.up, m.gate, m.down} {
			if l != nil {
				of[l.weight] = "mlp"
			}
		}
	}
	for _, m := range b.moes {
		of[m.gate.weight] = "router"
	}
	for _, h := range b.heads {
		of[h.weight] = "head"
	}
	for _, e := range b.embeddings {
		of[e.weight] = "embedding"
	}
	return of
}

// AttentionOf returns a function from a node's path to the path of the attention layer
// that recorded it, "" for other nodes.
func (b *Base) AttentionOf() func(path string) string {
	paths := map[string]bool{}
	for _, a := range b.attentions {
		paths[a.scope] = true
	}
	return func(path string) string { return holder(path, paths) }
}

// DependsOnSmoothing returns a function that reports whether the saved scale or history of
// a name ([Base.Unpack]) depends on the form of Smooth-SwiGLU: those of h, of W3′, and of
// the gradient that w3's GEMMs read.
func (b *Base) DependsOnSmoothing() func(name string) bool {
	paths := map[string]bool{}
	for _, m := range b.mlps {
		paths[m.scope+".hidden"], paths[m.down.Scope] = true, true
	}
	return func(name string) bool { return holder(name, paths) != "" }
}

// holder returns the one of the paths that is path or a parent of it, or "".
func holder(path string, paths map[string]bool) string {
	for path != "" && !paths[path] {
		path = parent(path)
	}
	return path
}

// parent returns a path without its last component: "layers.3" of "layers.3.mlp".
func parent(path string) string {
	return path[:max(0, strings.LastIndexByte(path, '.'))]
}
