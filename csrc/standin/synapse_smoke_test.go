//go:build gaudi && cgo && linux

package standin

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSmoke(t *testing.T) {
	s := open(t, gaudi2)
	g := s.graph(gaudi2)
	x := g.floats([]float32{1, 2, 3, 4}, 2, 2)
	y := g.temp(typeF32, 2, 2)
	z := g.out(typeF32, 2, 2)
	g.add("add_fwd_f32", nil, []*tensor{y}, x, x)
	g.add("gemm", []byte{0, 0}, []*tensor{z}, y, x)
	g.run()
	require.Equal(t, []float32{14, 20, 30, 44}, g.floatsOf(z))
}
