package train

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// The finite codes of 16 bits are those whose value minus itself is 0.
func TestNotFinite16(t *testing.T) {
	for _, d := range []fp8.DType{fp8.F16, fp8.BF16} {
		codes := []byte{0, 0} // 0 before each code
		for code := range 1 << 16 {
			want := -1
			if x := d.Float32(uint32(code)); x-x != 0 {
				want = 1
			}
			require.Equal(t, want, notFinite16(d, binary.LittleEndian.AppendUint16(codes, uint16(code))), "%s %#x", d, code)
		}
	}
}
