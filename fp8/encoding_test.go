package fp8

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEncodingText(t *testing.T) {
	for want, e := range map[string]Encoding{
		"bf16":                 {DType: BF16},
		"e4m3":                 {DType: E4M3},
		"e5m2 tensor fp32":     {DType: E5M2, Scale: F32},
		"e4m3 row fp32":        {DType: E4M3, Across: 1, Scale: F32},
		"e4m3 128x128 fp32":    {DType: E4M3, Across: 128, Along: 128, Scale: F32},
		"e2m1 1x16 e4m3+fp32":  {DType: E2M1, Across: 1, Along: 16, Scale: E4M3, Outer: true},
		"e2m1 16x16 e4m3+fp32": {DType: E2M1, Across: 16, Along: 16, Scale: E4M3, Outer: true},
	} {
		require.Equal(t, want, e.String())
	}
}

func TestMultiplies(t *testing.T) {
	tensor := func(d DType) Encoding { return Encoding{DType: d, Scale: F32} }
	block := func(d DType, across, along int, scale DType) Encoding {
		return Encoding{DType: d, Across: across, Along: along, Scale: scale}
	}
	list := append(PerTensor([2]DType{E4M3, E4M3}, [2]DType{E5M2, E4M3}),
		[2]Encoding{block(E4M3, 1, 0, F32), block(E4M3, 1, 0, F32)},
		[2]Encoding{block(E4M3, 1, 32, E8M0), block(E4M3, 1, 32, E8M0)},
		[2]Encoding{block(E4M3, 1, 128, F32), block(E4M3, 128, 128, F32)},
		[2]Encoding{{DType: E2M3}, {DType: E2M3}})
	for _, c := range []struct {
		list [][2]Encoding
		a, b Encoding
		want bool
	}{
		{list, tensor(E5M2), tensor(E4M3), true},
		{list, tensor(E4M3), tensor(E5M2), false},
		{list, block(E4M3, 1, 32, E8M0), block(E4M3, 1, 32, E8M0), true},
		{list, block(E4M3, 1, 32, E8M0), block(E4M3, 32, 32, E8M0), true}, // scales are repeated
		{list, block(E4M3, 1, 32, E8M0), tensor(E4M3), false},
		{list, block(E4M3, 1, 32, F32), block(E4M3, 1, 32, F32), false},
		{list, block(E4M3, 1, 0, F32), tensor(E4M3), true},
		{list, block(E4M3, 1, 128, F32), block(E4M3, 128, 128, F32), true},
		{list, block(E4M3, 1, 128, F32), block(E4M3, 1, 128, F32), false},
		{list, block(E2M3, 3, 5, E4M3), tensor(E2M3), true}, // any scales
		{nil, block(E2M1, 1, 16, E4M3), tensor(E5M2), true},
		{nil, tensor(INT8), tensor(INT4), true},
		{nil, tensor(INT8), tensor(E4M3), false},
		{nil, Encoding{DType: BF16}, Encoding{DType: BF16}, false},
		{[][2]Encoding{}, tensor(E4M3), tensor(E4M3), false},
	} {
		require.Equal(t, c.want, Multiplies(c.list, c.a, c.b), "%s by %s", c.a, c.b)
	}
	outer := Encoding{DType: E2M1, Across: 1, Along: 16, Scale: E4M3, Outer: true}
	inner := outer
	inner.Outer = false
	require.False(t, Multiplies([][2]Encoding{{outer, outer}}, outer, inner))
}

func TestCommonPairs(t *testing.T) {
	tensor := PerTensor([2]DType{E4M3, E4M3}, [2]DType{E5M2, E5M2})
	anyScales := [][2]Encoding{{{DType: E4M3}, {DType: E4M3}}}
	require.Nil(t, CommonPairs(nil, nil))
	require.Equal(t, tensor, CommonPairs(nil, tensor))
	require.Equal(t, tensor[:1], CommonPairs(tensor, anyScales))
	require.Equal(t, tensor[:1], CommonPairs(anyScales, tensor))
	none := CommonPairs(tensor[1:], anyScales)
	require.NotNil(t, none)
	require.Empty(t, none)
}
