// Activation is the octet command with an activation of its own, squared ReLU:
//
//	go run . train squared-relu.toml --backend emu --steps 20
package main

import (
	"log"
	"os"

	"octet/backend"
	"octet/command"
	"octet/nn"
)

// register makes squared-relu a value of model.activation.
func register() error {
	return nn.RegisterActivation("squared-relu", nn.Nonlinearity{
		Forward: func(up, _ *backend.Tensor, out []backend.Cast) backend.Op {
			return &SquaredReLU{X: up, Out: out}
		},
		Backward: func(dOut, up, _ *backend.Tensor, dUp, _ []backend.Cast) backend.Op {
			return &SquaredReLUGrad{DOut: dOut, X: up, DX: dUp}
		},
	})
}

func main() {
	if err := register(); err != nil {
		log.Fatal(err)
	}
	os.Exit(command.Main(os.Args, nil))
}
