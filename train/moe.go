package train

import (
	"fmt"

	"octet/backend"
	"octet/checkpoint"
	"octet/nn"
)

// experts checks the mixture of experts.
func (v *validator) experts(m Model) {
	v.positive("model.expert_capacity", m.ExpertCapacity, 1.25)
	v.notNegative("model.router_aux_loss", m.RouterAuxLoss, 0.01)
	if !inRange(v, "model.experts", m.Experts, 0, nn.MaxExperts) {
		return
	}
	if d := Default().Model; m.Experts == 0 {
		if m.ExpertsPerToken != d.ExpertsPerToken || m.ExpertCapacity != d.ExpertCapacity || m.RouterAuxLoss != d.RouterAuxLoss {
			v.fail("model.experts_per_token = %d, expert_capacity = %v and router_aux_loss = %v have no effect with model.experts = 0; set model.experts, or leave them out", m.ExpertsPerToken, m.ExpertCapacity, m.RouterAuxLoss)
		}
		return
	}
	if n := m.ExpertsPerToken; n < 1 || n > m.Experts {
		v.fail("model.experts_per_token = %d is not from 1 to model.experts = %d; use model.experts_per_token = %d", n, m.Experts, min(max(n, 1), m.Experts))
	}
	if f, err := nn.LookupActivation(nn.Activation(m.Activation)); err == nil && !f.Gated {
		v.fail("model.experts = %d needs gated experts, as in Mixtral, and model.activation = %q has no gate; use swiglu", m.Experts, m.Activation)
	}
}

// moe returns the mixture of experts of an nn.Config.
func (m Model) moe() nn.MoEShape {
	if m.Experts == 0 {
		return nn.MoEShape{}
	}
	return nn.MoEShape{Experts: m.Experts, PerToken: m.ExpertsPerToken, Capacity: m.ExpertCapacity, Aux: m.RouterAuxLoss}
}

// hfExperts returns what config.json says of the experts.
func (m Model) hfExperts() checkpoint.Experts {
	if m.Experts == 0 {
		return checkpoint.Experts{}
	}
	return checkpoint.Experts{Experts: m.Experts, PerToken: m.ExpertsPerToken, Aux: m.RouterAuxLoss}
}

// needsExperts returns an error for experts on a device that lacks their ops.
func (m Model) needsExperts(s backend.Spec) error {
	if m.Experts > 0 && !s.Experts {
		return fmt.Errorf("%w by backend %s: model.experts = %d needs ops that route tokens, which this backend lacks; use 0, or --backend emu", backend.ErrUnsupported, s.DeviceName(), m.Experts)
	}
	return nil
}

// ActiveParameters counts the parameters that a token takes: of the experts, those that it goes to.
func (j *Job) ActiveParameters() (active int64) {
	for _, g := range j.ParamGroups() {
		if m := j.Config.Model; g.Name == "mlp" && m.Experts > 0 {
			g.N = g.N / int64(m.Experts) * int64(m.ExpertsPerToken)
		}
		active += g.N
	}
	return active
}

// Routing describes what the routers of all layers did in a step, on all ranks.
type Routing struct {
	Dropped float64 // share of the assignments of tokens to experts
	MaxLoad float64 // largest share of a layer's assignments that go to one expert, over the even share
	AuxLoss float64 // of Switch Transformers, without its coefficient: 1 for balanced experts; mean of the layers
}

// routing returns what the rows of nn.Base.RouteStats say.
func (j *Job) routing(raw []byte) (r Routing) {
	n := j.Model.RouteStats.Cols()
	layers := j.Model.RouteStats.Rows()
	dropped, all := 0.0, 0.0
	for row := range layers {
		at := func(i int) float64 { return float(raw[4*(row*n+i):]) }
		load, largest := 0.0, 0.0
		for e := backend.RouteStats; e < n; e++ {
			load, largest = load+at(e), max(largest, at(e))
		}
		dropped, all = dropped+at(backend.RouteDropped), all+load
		r.MaxLoad = max(r.MaxLoad, largest/load*float64(n-backend.RouteStats))
		r.AuxLoss += at(backend.RouteAux) / at(backend.RouteTokens) / float64(layers)
	}
	r.Dropped = dropped / all
	return r
}
