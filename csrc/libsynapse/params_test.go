package libsynapse

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Sizes and offsets of SynapseAI's structures as a compiler lays them out. Each case
// lists the bytes that are not zero.
func TestParamsLayout(t *testing.T) {
	type fields = map[int]any
	ones := fields{}
	for i := range 25 {
		ones[504+8*i] = uint64(1)
	}
	with := func(more fields) fields {
		all := fields{}
		for _, m := range []fields{ones, more} {
			for at, v := range m {
				all[at] = v
			}
		}
		return all
	}
	for name, c := range map[string]struct {
		got  []byte
		size int
		want fields
	}{
		"gemm":           {GemmParams(false, false), 2, nil},
		"gemm, A":        {GemmParams(true, false), 2, fields{0: true}},
		"gemm, B":        {GemmParams(false, true), 2, fields{1: true}},
		"cast":           {CastParams(Nearest), 4, nil},
		"cast, SR":       {CastParams(Stochastic), 4, fields{0: uint32(3)}},
		"reduction":      {ReductionParams(0b1011, true), 8, fields{0: uint32(0b1011), 4: true}},
		"reduction, all": {ReductionParams(0, false), 8, nil},
		"RMSNorm":        {RMSNormParams(1e-6), 24, fields{0: true, 4: float32(1e-6)}},
		"RMSNorm grad":   {RMSNormGradParams(), 16, fields{12: true}},
		"sdpa":           {SdpaParams(0.125, true, false), 32, fields{0: float32(0.125), 4: true}},
		"sdpa, inference": {
			SdpaParams(1, false, true), 32, fields{0: float32(1), 20: true},
		},
		"constant":       {ConstantParams(-2), 4, fields{0: float32(-2)}},
		"gather":         {GatherParams(1), 4, fields{0: uint32(1)}},
		"embedding grad": {EmbeddingGradParams(50304), 12, fields{0: uint32(50304), 4: uint32(math.MaxUint32)}},
		"axis":           {AxisParams(3), 4, fields{0: uint32(3)}},
		"transpose": {
			TransposeParams([]int{1, 0, 2}), 104,
			fields{0: uint32(3), 4: uint32(1), 12: uint32(2)},
		},
		"slice": {SliceParams(1, 16, 1<<33), 704, with(fields{0: uint32(1), 104: uint64(16), 304: uint64(1 << 33)})},
	} {
		want := make([]byte, c.size)
		for at, v := range c.want {
			_, err := binary.Encode(want[at:], binary.LittleEndian, v)
			require.NoError(t, err)
		}
		require.Equal(t, want, c.got, name)
	}
}
