package cuda

import "octet/backend"

var _ = implementNode((*binder).hadamard)

func (b *binder) hadamard(n *backend.Node, o *backend.Hadamard) ([]call, error) {
	return nil, unsupported(n, "there is no kernel of the Hadamard transform: drop hadamard from the recipe, or run it on emu")
}
