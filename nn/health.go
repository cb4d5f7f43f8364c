package nn

import (
	"octet/backend"
	"octet/fp8"
)

// Health holds the telemetry outputs of a pass that has Pass.Health set. All
// casts and layers share two tensors, which the host reads.
type Health struct {
	// Casts has a row for each cast to FP8, in the order of Model.HealthCasts:
	// Output F32 [casts, backend.HealthFields], see backend.CastHealth. Nil without
	// such casts.
	Casts *backend.Tensor
	// Channels has four rows for each layer: the channel maxima of
	// |up ⊙ silu(gate)|, then the cosine and the two norms of backend.RowCosine for
	// up_proj and gate_proj. Output F32 [4·layers, ffn]. Nil for other activations than
	// SwiGLU. All MLPs of a model must have the same width and activation.
	Channels *backend.Tensor
	// Layers holds, for each MLP, the path of the layer that it is a part of, "layers.3", or of the
	// expert that it is.
	Layers []string
}

// DeclareHealth declares the telemetry tensors. Call it once, before recording a health pass.
func (b *Base) DeclareHealth() *Health {
	h := &Health{}
	if n := len(b.Scales.measured); n > 0 {
		h.Casts = b.Vars.Tensor(backend.Output, "health.casts", fp8.F32, n, backend.HealthFields)
	}
	for _, l := range b.mlps {
		h.Layers = append(h.Layers, l.owner)
	}
	if len(b.mlps) > 0 && b.mlps[0].isSwiGLU() {
		h.Channels = b.Vars.Tensor(backend.Output, "health.channels", fp8.F32, 4*len(b.mlps), b.mlps[0].ffn)
	}
	return h
}

// CastNames names the elements of Scales.Amax and Scales.Scale by the names of their tensor and
// format: "layers.3.mlp.input.e4m3".
func (b *Base) CastNames() []string {
	names := make([]string, len(b.Scales.records))
	for i, r := range b.Scales.records {
		names[i] = r.name
	}
	return names
}

// HealthCast is a cast that a health pass measures.
type HealthCast struct {
	Name   string // tensor and format: "layers.3.mlp.input.e4m3"
	Record int    // its element of Scales.Amax; -1 if the cast computes its own scales
	Blocks bool   // per-row or block scales
}

// HealthCasts lists the FP8 casts that GEMMs read, one for each row of
// Health.Casts.
func (b *Base) HealthCasts() []HealthCast {
	list := make([]HealthCast, len(b.Scales.measured))
	for i, c := range b.Scales.measured {
		list[i] = HealthCast{Name: c.name, Record: -1, Blocks: c.blocks}
		if c.rec != nil {
			list[i].Record = c.rec.amax.Offset
		}
	}
	return list
}

// castHealth appends the measurement of copy i of a slot against x, the copy in
// the compute format, even where the cast reads the op's FP32 result.
func (p *Pass) castHealth(s *Slot, i int, x, codes *backend.Tensor) {
	if p.Health != nil && s.casts[i].DType.IsQuantized() {
		p.Add(&backend.CastHealth{X: x, Codes: codes, Out: p.Health.Casts.RowRange(s.rows[i], 1)})
	}
}

// channelHealth appends the measurement of a layer's SwiGLU channels.
func (l *MLP) channelHealth(p *Pass, s *mlpSaved) {
	if p.Health == nil || !l.isSwiGLU() {
		return
	}
	rows := p.Health.Channels.RowRange(4*l.layer, 4)
	p.Add(&backend.SwiGLUAmax{Up: s.up, Gate: s.gate, Out: rows.RowRange(0, 1)})
	up, gate := p.gather(l.up.weight, "up_proj.whole"), p.gather(l.gate.weight, "gate_proj.whole")
	p.Add(&backend.RowCosine{A: up, B: gate, Out: rows.RowRange(1, 3)})
}

// WeightHealth appends the measurement of the cached copies of all weights.
func (b *Base) WeightHealth(p *Pass) {
	for _, l := range b.linears {
		if l.copies == nil {
			continue
		}
		if !l.copies.hasQuantized() {
			continue
		}
		q := p.At(l.Scope)
		master := q.gather(l.weight, "weight.whole")
		for i, t := range l.cached {
			q.castHealth(l.copies, i, master, t)
		}
	}
}
