package backend

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// Frequencies are those of transformers: LlamaRotaryEmbedding(LlamaConfig(…)).inv_freq of
// transformers 5.24.0 (4.57.6 has the same), in float32, which rounds several times.
func TestFrequenciesOfTransformers(t *testing.T) {
	for name, c := range map[string]struct {
		rope Rope
		want []float64
	}{
		"Llama 3.2 1B": {
			Rope{HeadDim: 64, Theta: 500000, Factor: 32, LowFreq: 1, HighFreq: 4, Original: 8192},
			[]float64{
				1.0, 0.663601279, 0.440366626, 0.292227834, 0.193922758, 0.128687382, 0.0853971019, 0.0566696189,
				0.0376060307, 0.0249554086, 0.0165604409, 0.0109895291, 0.00729266508, 0.00483942125, 0.00321144611,
				0.00129054801, 0.000429556705, 9.70828623e-05, 1.94616387e-05, 1.29147675e-05, 8.57025589e-06,
				5.68723226e-06, 3.77405445e-06, 2.50446715e-06, 1.66196742e-06, 1.10288363e-06, 7.31874934e-07,
				4.85673127e-07, 3.22293289e-07, 2.1387423e-07, 1.41927202e-07, 9.41830649e-08,
			},
		},
		"Llama 3.1 8B": {
			Rope{HeadDim: 128, Theta: 500000, Factor: 8, LowFreq: 1, HighFreq: 4, Original: 8192},
			[]float64{
				1.0, 0.814617217, 0.663601279, 0.540580988, 0.440366626, 0.358730227, 0.292227834, 0.238053814,
				0.193922758, 0.157972813, 0.128687382, 0.10483095, 0.0853971019, 0.0695659518, 0.0566696189, 0.0461640507,
				0.0376060307, 0.0306345206, 0.0249554086, 0.0203291047, 0.0165604409, 0.0134904198, 0.0109895291,
				0.00895225909, 0.00729266508, 0.00594073068, 0.00483942125, 0.00394227589, 0.00321144611, 0.00216657063,
				0.00137189368, 0.00085675146, 0.000524846022, 0.00031269365, 0.000178507791, 9.55621217e-05, 7.78465546e-05,
				6.34151438e-05, 5.16590699e-05, 4.20823671e-05, 3.42810235e-05, 2.79259093e-05, 2.2748929e-05,
				1.85316694e-05, 1.50962178e-05, 1.22976389e-05, 1.00178686e-05, 8.1607277e-06, 6.64786967e-06,
				5.41546933e-06, 4.41153452e-06, 3.59371188e-06, 2.92749974e-06, 2.38479174e-06, 1.94269251e-06,
				1.58255079e-06, 1.28917316e-06, 1.05018262e-06, 8.55496921e-07, 6.96902532e-07, 5.6770881e-07,
				4.6246538e-07, 3.7673226e-07, 3.06892588e-07,
			},
		},
		"linear": {
			Rope{HeadDim: 16, Theta: 10000, Factor: 4},
			[]float64{0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05},
		},
		"none": {Rope{HeadDim: 4, Theta: 10000}, []float64{1, 0.01}},
	} {
		require.InEpsilonSlice(t, c.want, c.rope.Frequencies(), 2e-6, name)
	}
}

// An op refuses numbers that no model has.
func TestRopeRefusesScaling(t *testing.T) {
	for want, edit := range map[string]func(*Rope){
		"Factor is 0.5, expected 0 or at least 1":    func(o *Rope) { o.Factor = 0.5 },
		"Original is -1, expected at least 0":        func(o *Rope) { o.Original = -1 },
		"LowFreq is 4 and HighFreq 4":                func(o *Rope) { o.LowFreq = 4 },
		"LowFreq is 0 and HighFreq 4":                func(o *Rope) { o.LowFreq = 0 },
		"LowFreq is 1 and HighFreq 4, with Factor 0": func(o *Rope) { o.Factor = 0 },
		"LowFreq is 1 and HighFreq 4 without":        func(o *Rope) { o.Original = 0 },
	} {
		p := NewVars().Program("p")
		x := p.Vars().Tensor(Input, "x", fp8.F32, 4, 8)
		op := &Rope{X: x, Out: []Cast{{Out: p.Temp("y", fp8.F32, 4, 8)}}, Seq: 4, HeadDim: 8, Theta: 100, Factor: 8, LowFreq: 1, HighFreq: 4, Original: 16}
		edit(op)
		p.Add(op)
		require.ErrorContains(t, p.Err(), want)
	}
}
