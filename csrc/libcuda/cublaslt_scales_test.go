//go:build cuda && cgo && linux

package libcuda

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/csrc/standin"
	"octet/fp8"
)

// Scale modes exist for the GPUs, the versions and the operands that NVIDIA's documentation
// lists; others are refused, with the documented status.
func TestRefusedScaleModes(t *testing.T) {
	standin.Only(t, "a real library may support more than its documentation says")
	b := newBench(t)
	A, _ := b.matrix(fp8.E4M3, 64, 64, 1)
	H, _ := b.matrix(fp8.BF16, 64, 64, 0)
	scales := alloc(t, b.d, 4096) // zeros
	require.NoError(t, b.s.Fill(scales, 0, 4096))
	good := func(x, y ScaleMode) Gemm {
		g := Gemm{M: 32, N: 32, K: 32, TransB: true, A: A, B: A, D: H, Alpha: 1}
		g.A.Scale, g.A.Mode, g.B.Scale, g.B.Mode = scales, x, scales, y
		return g
	}
	status := func(capability, version int, g Gemm) int {
		t.Helper()
		t.Setenv("STANDIN_CAPABILITY", fmt.Sprint(capability))
		t.Setenv("STANDIN_CUBLASLT", fmt.Sprint(version))
		if err := b.run(g); err != nil {
			return code(err)
		}
		return 0
	}
	modes := []ScaleMode{PerTensor, Vec16E4M3, Vec32E8M0, PerRow, Vec128, Block128}
	listed := map[[2]ScaleMode]bool{{PerRow, PerRow}: true, {Vec128, Vec128}: true, {Vec128, Block128}: true, {Block128, Vec128}: true}
	for _, x := range modes {
		for _, y := range modes {
			pair := [2]ScaleMode{x, y}
			tensor := pair == [2]ScaleMode{}
			for capability, ok := range map[int]bool{
				89: tensor, 90: tensor || listed[pair],
				100: tensor || pair == [2]ScaleMode{Vec32E8M0, Vec32E8M0}, 120: tensor || pair == [2]ScaleMode{Vec32E8M0, Vec32E8M0},
			} {
				require.Equal(t, map[bool]int{true: 0, false: 15}[ok], status(capability, 130000, good(x, y)), "%d: %v", capability, pair)
			}
		}
	}
	require.Equal(t, 7, status(90, 120899, good(PerRow, PerRow)), "before CUDA 12.9")
	require.Equal(t, 7, status(100, 120799, good(Vec32E8M0, Vec32E8M0)), "before CUDA 12.8")

	for what, change := range map[string]func(*Gemm){
		"an FP8 D":              func(g *Gemm) { g.D = A },
		"scales at 4 bytes":     func(g *Gemm) { g.B.Scale += 4 },
		"no scales":             func(g *Gemm) { g.A.Scale = 0 },
		"M of 30":               func(g *Gemm) { g.M = 30 },
		"scales of BF16":        func(g *Gemm) { g.A.DType, g.B.DType = fp8.BF16, fp8.BF16 },
		"a GEMM of other sizes": func(g *Gemm) { g.K = 24 },
	} {
		g := good(Vec128, Block128)
		change(&g)
		require.Equal(t, 15, status(90, 130000, g), what)
	}
	g := good(PerRow, PerRow)
	g.M = 30
	require.Zero(t, status(90, 130000, g), "M is free without blocks")
	fp4 := func(g Gemm) Gemm {
		g.A.DType, g.B.DType, g.A.LD, g.B.LD = fp8.E2M1, fp8.E2M1, 96, 96
		return g
	}
	require.Zero(t, status(100, 120800, fp4(good(Vec16E4M3, Vec16E4M3))))
	for _, mode := range []ScaleMode{PerTensor, Vec32E8M0, PerRow, Vec128} {
		require.Equal(t, 15, status(100, 130000, fp4(good(mode, mode))), "E2M1 with mode %d", mode)
	}
	require.Equal(t, 15, status(90, 130000, fp4(good(Vec16E4M3, Vec16E4M3))), "E2M1 on Hopper")
	g = fp4(good(Vec16E4M3, Vec16E4M3))
	g.B.DType = fp8.E4M3
	require.Equal(t, 15, status(100, 130000, g), "E2M1 by E4M3")
	g = good(Vec32E8M0, Vec32E8M0)
	g.K = 48
	require.Equal(t, 15, status(100, 130000, g), "half a block")
}

// Scales whose padding is not zero are detected when the GEMM runs.
func TestPaddingOfScales(t *testing.T) {
	standin.Only(t, "a real GPU would be lost")
	standin.Load(t, "libcuda")
	standin.Set(t, "STANDIN_CAPABILITY", "100")
	d, err := Open(0)
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	lt := blas(t, d)
	p, err := d.Alloc(8192)
	require.NoError(t, err)
	require.NoError(t, s.Fill(p, 1, 8192))
	x := Matrix{DType: fp8.E4M3, Data: p, LD: 32, Scale: p + 4096, Mode: Vec32E8M0}
	matMul, err := lt.NewMatMul(Gemm{M: 32, N: 32, K: 32, TransB: true, A: x, B: x, D: Matrix{DType: fp8.F32, Data: p, LD: 32}, Alpha: 1})
	require.NoError(t, err)
	defer matMul.Close()
	algos, err := matMul.Algos(0, 1)
	require.NoError(t, err)
	require.NoError(t, matMul.Run(s, &algos[0], 0, 0))
	require.Equal(t, 719, code(s.Synchronize()))
}
