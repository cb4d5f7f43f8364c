package nn

import (
	"slices"

	"octet/backend"
	"octet/fp8"
)

// Health is where a pass with Pass.Health set writes what it measures besides
// training. Layers of the model are rows, so that the host reads two tensors.
type Health struct {
	// Casts has a row for each cast to FP8 with one scale for the tensor, in the
	// order of Model.CastNames: Output F32 [casts, 3], see backend.CastHealth.
	Casts *backend.Tensor
	// Channels has four rows for each layer with a gate, which are the channel
	// maxima of |up ⊙ silu(gate)|, and the cosines and lengths of backend.RowCosine
	// for up_proj and gate_proj: Output F32 [4·layers, ffn]. Nil without a gate.
	Channels *backend.Tensor
}

// DeclareHealth declares the tensors: called once, by who records such passes.
// Casts is nil if nothing is scaled.
func (m *Model) DeclareHealth() *Health {
	h := &Health{}
	if !m.Scales.Empty() {
		h.Casts = m.Vars.Tensor(backend.Output, "health.casts", fp8.F32, len(m.Scales.records), 3)
	}
	if m.Config.Activation.gated() {
		h.Channels = m.Vars.Tensor(backend.Output, "health.channels", fp8.F32, 4*m.Config.Layers, m.Config.FFN)
	}
	return h
}

// CastNames names the elements of Scales.Amax and Scales.Scale: what is cast
// and its format, "layers.3.mlp.input.e4m3".
func (m *Model) CastNames() []string {
	names := make([]string, len(m.Scales.records))
	for i, r := range m.Scales.records {
		names[i] = r.name
	}
	return names
}

// castHealth appends the measurement of one cast of x.
func (p *Pass) castHealth(x, codes *backend.Tensor, r *record) {
	if p.Health != nil && r != nil {
		p.Add(&backend.CastHealth{X: x, Codes: codes, Out: p.Health.Casts.RowRange(r.amax.Offset, 1)})
	}
}

// channelHealth appends that of a layer's channels.
func (l *MLP) channelHealth(p *Pass, s *mlpSaved) {
	if p.Health == nil || l.gate == nil {
		return
	}
	rows := p.Health.Channels.RowRange(4*l.layer, 4)
	p.Add(&backend.SwiGLUAmax{Up: s.up, Gate: s.gate, Out: rows.RowRange(0, 1)})
	up, gate := p.gather(l.up.weight, "up_proj.whole"), p.gather(l.gate.weight, "gate_proj.whole")
	p.Add(&backend.RowCosine{A: up, B: gate, Out: rows.RowRange(1, 3)})
}

// WeightHealth appends that of the cached copies of all weights.
func (m *Model) WeightHealth(p *Pass) {
	for _, l := range m.linears {
		if l.copies == nil {
			continue
		}
		if !slices.ContainsFunc(l.copies.recs, recorded) {
			continue
		}
		q := p.at(l.scope)
		master := q.gather(l.weight, "weight.whole")
		for i, t := range l.cached {
			q.castHealth(master, t, l.copies.recs[i])
		}
	}
}
