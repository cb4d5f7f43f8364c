package nn

import (
	"octet/backend"
	"octet/fp8"
)

// Embedding looks up a row of its table for each token.
type Embedding struct {
	scope  string
	weight *Param
	// table is what micro-batches read: the master; or, if it is sharded, a copy in the
	// compute format, to which looked-up rows are rounded anyway.
	table   *backend.Tensor
	castsIt bool // CastWeights casts table from the master
}

// Embedding declares a table of rows that are dim wide, padded to a multiple of 16 rows.
// Its parameter is ParamPrefix + param + ".weight".
func (b *Base) Embedding(scope, param string, rows, dim int, std float64) *Embedding {
	e := &Embedding{scope: scope}
	e.weight = b.splitParam(SplitRows, b.ParamPrefix+param+".weight", false, std, b.padded(rows), dim)
	e.weight.Embedding = true
	e.weight.Rows = rows
	b.embeddings = append(b.embeddings, e)
	return e
}

// declareTable declares what micro-batches read, unless that was done before. tied is the
// head that shares the weight and may have a copy in the compute format, or nil.
func (b *Base) declareTable(e *Embedding, tied *Head) {
	w := e.weight
	switch {
	case e.table != nil:
	case w.whole != nil:
		e.table = w.whole
	case tied != nil && tied.copies.index(b.Plain()) >= 0:
		e.table = tied.cachedAs(b.Plain())
	case b.Recipe.Compute == fp8.F32:
		e.table = b.wholeOf(w)
	default:
		e.table, e.castsIt = b.copyOf(w, w.Name+"."+b.Recipe.Compute.String(), b.Plain()), true
	}
}

// castTable appends the cast of a table that is a copy of the master.
func (e *Embedding) castTable(p *Pass) {
	if !e.castsIt {
		return
	}
	p.At(e.scope).castRows(e.weight, []backend.Cast{{Out: e.table}})
}

// Forward appends the rows of the tokens: [tokens, dim] in the compute format.
func (e *Embedding) Forward(p *Pass, tokens *backend.Tensor) *backend.Tensor {
	x, cast := p.store(e.scope+".out", p.Tokens(), e.table.Cols())
	op := &backend.Embed{Table: e.table, IDs: tokens, Out: cast, Split: p.split()}
	if p.tensor > 1 {
		op.Control = p.Control
	}
	if p.named(e.scope).Add(op); p.tensor > 1 {
		return p.At(e.scope).reduceTokens(x, nil)
	}
	return x
}

// Backward appends the gradient of the table, given that of Forward's result. accumulate
// adds to a gradient that this micro-batch has written already: a tied head's.
func (e *Embedding) Backward(p *Pass, tokens, dy *backend.Tensor, accumulate bool) {
	q := p.At(e.scope)
	sum, earlier := q.openGrad(e.weight)
	op := &backend.EmbedGrad{IDs: tokens, DOut: dy, DTable: sum, Accumulate: earlier || accumulate, Split: p.split()}
	if p.tensor > 1 {
		op.DOut, op.Control = q.gatherTokens(dy), p.Control
	}
	q.Add(op)
	q.closeGrad(e.weight, sum)
}
