package nn

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"octet/backend"
	"octet/internal/spelling"
)

// Activation names the MLP's nonlinearity: one of these, or a registered one.
type Activation string

const (
	SwiGLU       Activation = "swiglu"
	SmoothSwiGLU Activation = "smooth-swiglu" // SwiGLU whose output is smoothed before an FP8 cast, see recipe.Smooth
	GELU         Activation = "gelu"          // ungated
	ReLU         Activation = "relu"          // ungated
)

// Nonlinearity records the ops between the GEMMs of an MLP: h = f(up, gate) in the
// forward, and the gradients of up and gate in the backward.
//
// up = w1·x, gate = w2·x, h and their gradients are [tokens, ffn]. up, gate and dOut are
// F32 or BF16, without a scale. Each result is stored through its casts: one or several,
// to F32, BF16 or FP8, and each may be transposed or stochastic. The op takes
// them in a []backend.Cast field tagged op:"cast".
//
// The functions run while programs are recorded, once for each layer and pass. Ops of
// another package embed [backend.Custom]: ref runs their Reference, emu their Loop.
type Nonlinearity struct {
	// Gated adds gate_proj. Without it, gate and dGate are nil.
	Gated bool
	// Forward returns the op that computes f(up, gate).
	Forward func(up, gate *backend.Tensor, out []backend.Cast) backend.Op
	// Backward returns the op that computes dUp = dOut ⊙ ∂f/∂up and
	// dGate = dOut ⊙ ∂f/∂gate.
	Backward func(dOut, up, gate *backend.Tensor, dUp, dGate []backend.Cast) backend.Op
}

type namedActivation struct {
	name Activation
	Nonlinearity
}

var swiGLU = Nonlinearity{
	Gated: true,
	Forward: func(up, gate *backend.Tensor, out []backend.Cast) backend.Op {
		return &backend.SwiGLU{Up: up, Gate: gate, Out: out}
	},
	Backward: func(dOut, up, gate *backend.Tensor, dUp, dGate []backend.Cast) backend.Op {
		return &backend.SwiGLUGrad{DOut: dOut, Up: up, Gate: gate, DUp: dUp, DGate: dGate}
	},
}

func ungated(kind backend.ActivationKind) Nonlinearity {
	return Nonlinearity{
		Forward: func(x, _ *backend.Tensor, out []backend.Cast) backend.Op {
			return &backend.Activation{X: x, Out: out, Kind: kind}
		},
		Backward: func(dOut, x, _ *backend.Tensor, dx, _ []backend.Cast) backend.Op {
			return &backend.ActivationGrad{DOut: dOut, X: x, DX: dx, Kind: kind}
		},
	}
}

// activations are those of this package, then the registered ones. The MLP records the
// smoothing of SmoothSwiGLU itself.
var activations = struct {
	sync.Mutex
	list []namedActivation
}{list: []namedActivation{
	{SwiGLU, swiGLU}, {SmoothSwiGLU, swiGLU}, {GELU, ungated(backend.GELU)}, {ReLU, ungated(backend.ReLU)},
}}

// RegisterActivation makes an activation a value of model.activation, in this process. Call
// it before reading a configuration or a checkpoint. It returns an error for a name that is
// taken or invalid: a name has at most 40 lower-case letters, digits, - and _, the first a
// letter.
//
// A checkpoint stores the name alone. To change the function, register another name.
// Telemetry of channels, smoothing and exports do not cover registered activations.
func RegisterActivation(name Activation, f Nonlinearity) error {
	switch {
	case !spelling.IsName(string(name)):
		return fmt.Errorf("activation %q: expected "+spelling.NameRule, name)
	case f.Forward == nil || f.Backward == nil:
		return fmt.Errorf("activation %s needs Forward and Backward", name)
	case name == "silu":
		return errors.New("activation silu: config.json calls swiglu by this name; choose another name")
	}
	activations.Lock()
	defer activations.Unlock()
	for _, a := range activations.list {
		if a.name == name {
			return fmt.Errorf("activation %s: this process already has an activation of this name; choose another name", name)
		}
	}
	activations.list = append(activations.list, namedActivation{name, f})
	return nil
}

// LookupActivation returns an activation by name. The error for an unknown name lists the
// known ones.
func LookupActivation(name Activation) (Nonlinearity, error) {
	activations.Lock()
	defer activations.Unlock()
	var known []string
	for _, a := range activations.list {
		if a.name == name {
			return a.Nonlinearity, nil
		}
		known = append(known, string(a.name))
	}
	return Nonlinearity{}, fmt.Errorf("unknown activation %q: this program has %s; for another, run a program that registers it (nn.RegisterActivation)%s",
		name, strings.Join(known, ", "), spelling.DidYouMean(string(name), known))
}

// Activations lists the names of all activations, the registered ones last.
func Activations() []Activation {
	activations.Lock()
	defer activations.Unlock()
	names := make([]Activation, len(activations.list))
	for i, a := range activations.list {
		names[i] = a.name
	}
	return names
}
