package checkpoint

import (
	"fmt"
	"math"
)

// Experts describes a mixture of experts, in the words of Mixtral's config.json. The zero value is
// an MLP.
type Experts struct {
	Experts  int     // num_local_experts
	PerToken int     // num_experts_per_tok
	Aux      float64 // router_aux_loss_coef, for training alone
}

// mixtral reports whether transformers computes the same: Mixtral makes the weights of a token's
// experts add up to 1, also that of a single one, which Octet leaves as it is.
func (e Experts) mixtral() bool { return e.Experts > 0 && (e.PerToken > 1 || e.Experts == 1) }

func (e Experts) validate(gated bool) error {
	switch {
	case e == Experts{}:
		return nil
	case e.Experts < 1 || e.Experts > maxSize:
		return fmt.Errorf("num_local_experts = %d: expected a whole number from 1 to %d", e.Experts, maxSize)
	case e.PerToken < 1 || e.PerToken > e.Experts:
		return fmt.Errorf("num_experts_per_tok = %d: expected a whole number from 1 to num_local_experts = %d", e.PerToken, e.Experts)
	case !(e.Aux >= 0) || math.IsInf(e.Aux, 1):
		return fmt.Errorf("router_aux_loss_coef = %v: expected a number of at least 0", e.Aux)
	case !gated:
		return fmt.Errorf("num_local_experts = %d: experts need gate_proj", e.Experts)
	}
	return nil
}

// expertFields are the keys of Experts.
type expertFields struct {
	Experts  int     `json:"num_local_experts"`
	PerToken int     `json:"num_experts_per_tok"`
	Aux      float64 `json:"router_aux_loss_coef"`
}

func (e Experts) fields() *expertFields {
	if e == (Experts{}) {
		return nil
	}
	fields := expertFields(e)
	return &fields
}

// experts reads the keys of Experts. Those of Mixtral have the defaults of MixtralConfig.
func (f *fields) experts(mixtral bool) (e Experts) {
	if !mixtral && f.raw("num_local_experts") == nil {
		return e
	}
	if jitter := f.number("router_jitter_noise", 0); jitter != 0 {
		f.fail("router_jitter_noise = %v: octet routes without noise", jitter)
	}
	return Experts{f.size("num_local_experts", 8), f.size("num_experts_per_tok", 2), f.number("router_aux_loss_coef", 0.001)}
}

// layer returns the tensors of a layer with those of the experts in place of the MLP's.
func (e Experts) layer(dense []tensor, hidden, ffn int) (list []tensor) {
	if e == (Experts{}) {
		return dense
	}
	for _, t := range dense {
		switch t.name {
		case "mlp.gate_proj", "mlp.down_proj":
		case "mlp.up_proj":
			list = append(list, tensor{"block_sparse_moe.gate", []int{e.Experts, hidden}})
			for i := range e.Experts {
				expert := fmt.Sprintf("block_sparse_moe.experts.%d.", i)
				list = append(list, tensor{expert + "w3", []int{ffn, hidden}}, tensor{expert + "w1", []int{ffn, hidden}}, tensor{expert + "w2", []int{hidden, ffn}})
			}
		default:
			list = append(list, t)
		}
	}
	return list
}
