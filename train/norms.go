package train

import (
	"octet/checkpoint"
	"octet/nn"
)

// norms checks where the model normalizes and how its weights start.
func (v *validator) norms(m Model) {
	v.oneOf("model.init_rule", m.InitRule, []string{"fixed", fanIn})
	v.oneOf("model.norm", m.Norm, []string{string(nn.PreNorm), string(nn.PostNorm), string(nn.BothNorms)})
	v.oneOf("model.qk_norm", m.QKNorm, []string{string(nn.NoQKNorm), string(nn.LearnedQKNorm), string(nn.FrozenQKNorm)})
	v.positive("model.norm_gain", m.NormGain, 1)
	v.positive("model.embed_scale", m.EmbedScale, 1)
	if m.LayerScale != nil {
		v.notNegative("model.layer_scale", *m.LayerScale, 0)
	}
	switch post := m.Norm != string(nn.PreNorm); {
	case post && m.LayerScale != nil:
		v.fail("model.layer_scale = %v with model.norm = %q would multiply the same values as the gains of the norms; use model.norm_gain", *m.LayerScale, m.Norm)
	case !post && m.NormGain != 1:
		v.fail("model.norm_gain = %v with model.norm = %q: only norms of results start with it; use model.norm = post or both", m.NormGain, m.Norm)
	}
}

// fanIn is the model.init_rule of nn.Config.FanIn.
const fanIn = "fan-in"

// setNorms sets the fields of an nn.Config that norms checks.
func (m Model) setNorms(c *nn.Config) {
	setHFNorms(c, m.hfNorms())
	c.FanIn, c.LayerScale = m.InitRule == fanIn, m.LayerScale
	if m.NormGain != 1 {
		c.NormGain = m.NormGain
	}
}

// hfNorms returns what config.json says of the norms. Llama's are its zero value.
func (m Model) hfNorms() checkpoint.Norms {
	return checkpoint.Norms{
		Norm: m.Norm, NoFinal: !m.FinalNorm, QK: m.QKNorm, LayerScale: m.LayerScale != nil, EmbedScale: m.EmbedScale,
	}.Canonical()
}

// setHFNorms sets the fields of an nn.Config from config.json.
func setHFNorms(c *nn.Config, n checkpoint.Norms) {
	c.Norm, c.QKNorm, c.NoFinalNorm, c.EmbedScale = nn.Norm(n.Norm), nn.QKNorm(n.QK), n.NoFinal, n.EmbedScale
	if n.LayerScale {
		c.LayerScale = new(1.0) // the weights replace this value
	}
}
