package bench

import (
	"fmt"
	"regexp"
	"strconv"

	"octet/backend"
	"octet/fp8"
)

// Heads is a shape of attention: Batch sequences of Tokens tokens, Heads query heads that share
// KV heads of keys and values, and the size of a head.
type Heads struct{ Batch, Tokens, Heads, KV, Size int }

func (h Heads) String() string {
	heads := strconv.Itoa(h.Heads)
	if h.KV != h.Heads {
		heads += "/" + strconv.Itoa(h.KV)
	}
	return fmt.Sprintf("%dx%dx%sx%d", h.Batch, h.Tokens, heads, h.Size)
}

// Attentions is the default: the heads of the presets small and 124m, and longer sequences with
// grouped queries.
var Attentions = []Heads{
	{4, 256, 6, 6, 64},
	{1, 1024, 12, 12, 64},
	{1, 4096, 8, 2, 128},
}

var shapeOfHeads = regexp.MustCompile(`^([0-9]{1,7})x([0-9]{1,7})x([0-9]{1,7})(?:/([0-9]{1,7}))?x([0-9]{1,7})$`)

// ParseHeads reads "BxTxHxD", or "BxTxH/KVxD" with grouped queries.
func ParseHeads(text string) (Heads, error) {
	d, err := extents(text, shapeOfHeads, "BxTxHxD or BxTxH/KVxD, such as 1x4096x8/2x128")
	if err != nil {
		return Heads{}, err
	}
	return Heads{d[0], d[1], d[2], d[3], d[4]}, nil
}

// Directions are the two ops of attention in a step: the names of results.
var Directions = []string{"forward", "backward"}

// Attention returns the cases of each shape: causal attention in BF16, for each of Directions. FLOPs
// are those of the visible scores: half of all.
func (b *Bench) Attention(shapes []Heads) ([]Case, error) {
	var list []Case
	for _, h := range shapes {
		list = append(list, h.forward(), h.backward())
	}
	return b.check(list)
}

// record records attention in a program.
func (h Heads) record(vars *backend.Vars, p *backend.Program) *backend.Attention {
	rows := h.Batch * h.Tokens
	tensor := func(name string, class backend.Class, heads int) *backend.Tensor {
		return vars.Tensor(class, name, fp8.BF16, rows, heads*h.Size)
	}
	o := &backend.Attention{
		Q: tensor("q", backend.Stash, h.Heads), K: tensor("k", backend.Stash, h.KV), V: tensor("v", backend.Stash, h.KV),
		Out: []backend.Cast{{Out: tensor("out", backend.State, h.Heads)}}, LSE: vars.Tensor(backend.State, "lse", fp8.F32, h.Batch*h.Heads, h.Tokens),
		Batch: h.Batch, HeadDim: h.Size,
	}
	p.Add(o)
	return o
}

func (h Heads) forward() Case {
	vars := backend.NewVars()
	p := vars.Program("attention")
	h.record(vars, p)
	return Case{bench: "attention", name: Directions[0], shape: h.String(), program: p, fill: contents{}, limit: byFLOPs}
}

// backward reads the results of forward, which another program computes beforehand.
func (h Heads) backward() Case {
	vars := backend.NewVars()
	prepare := vars.Program("forward")
	o := h.record(vars, prepare)
	gradient := func(t *backend.Tensor) []backend.Cast {
		return []backend.Cast{{Out: vars.Tensor(backend.Output, "d"+t.Name, fp8.BF16, t.Rows(), t.Cols())}}
	}
	p := vars.Program("attention")
	p.Add(&backend.AttentionGrad{
		DOut: vars.Tensor(backend.Stash, "dout", fp8.BF16, o.Q.Rows(), o.Q.Cols()),
		Q:    o.Q, K: o.K, V: o.V, O: o.Out[0].Out, LSE: o.LSE,
		DQ: gradient(o.Q), DK: gradient(o.K), DV: gradient(o.V),
		Batch: h.Batch, HeadDim: h.Size,
	})
	return Case{bench: "attention", name: Directions[1], shape: h.String(), program: p, prepare: prepare, fill: contents{}, limit: byFLOPs}
}
