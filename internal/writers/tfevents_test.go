package writers

import (
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
)

// The CRC-32C of RFC 3720, B.4 (32 zero bytes, 32 of 0xff), after undoing TFRecord's mask.
func TestMaskedCRC(t *testing.T) {
	unmask := func(m uint32) uint32 {
		rotated := m - 0xa282ead8
		return rotated>>17 | rotated<<15
	}
	require.Equal(t, uint32(0x8a9136aa), unmask(maskedCRC(make([]byte, 32))))
	require.Equal(t, uint32(0x62a8ab43), unmask(maskedCRC(slices.Repeat([]byte{0xff}, 32))))
}

// event is an event that the tests read back.
type event struct {
	version string
	time    float64
	step    int64
	start   bool
	scalars map[string]float32
}

// readEvents parses the format independently and verifies its checksums.
func readEvents(t *testing.T, path string) (events []event) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	check := func(data []byte, masked uint32) {
		crc := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
		require.Equal(t, masked, (crc>>15|crc<<17)+0xa282ead8)
	}
	for len(b) > 0 {
		n := binary.LittleEndian.Uint64(b)
		check(b[:8], binary.LittleEndian.Uint32(b[8:]))
		data := b[12 : 12+n]
		check(data, binary.LittleEndian.Uint32(b[12+n:]))
		b = b[16+n:]
		e := event{scalars: map[string]float32{}}
		fields(t, data, func(num protowire.Number, bits uint64, text []byte) {
			switch num {
			case 1:
				e.time = math.Float64frombits(bits)
			case 2:
				e.step = int64(bits)
			case 3:
				e.version = string(text)
			case 5:
				fields(t, text, func(_ protowire.Number, _ uint64, value []byte) {
					var tag string
					fields(t, value, func(num protowire.Number, bits uint64, text []byte) {
						if num == 1 {
							tag = string(text)
						} else {
							e.scalars[tag] = math.Float32frombits(uint32(bits))
						}
					})
				})
			case 7:
				require.Equal(t, "0801", hex.EncodeToString(text))
				e.start = true
			}
		})
		events = append(events, e)
	}
	return events
}

func fields(t *testing.T, b []byte, f func(protowire.Number, uint64, []byte)) {
	t.Helper()
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		require.Positive(t, n)
		b = b[n:]
		var bits uint64
		var text []byte
		switch typ {
		case protowire.VarintType:
			bits, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			bits, n = protowire.ConsumeFixed64(b)
		case protowire.Fixed32Type:
			var x uint32
			x, n = protowire.ConsumeFixed32(b)
			bits = uint64(x)
		case protowire.BytesType:
			text, n = protowire.ConsumeBytes(b)
		}
		require.Positive(t, n)
		b = b[n:]
		f(num, bits, text)
	}
}

func TestEvents(t *testing.T) {
	dir := t.TempDir()
	now := time.Unix(1_700_000_000, 250_000_000)
	e, err := OpenEvents(dir, now, 1)
	require.NoError(t, err)
	for step := 1; step <= 3; step++ {
		require.NoError(t, e.Write(now.Add(time.Duration(step)*time.Second), step, Scalar{"loss/train", 1 / float64(step)}, Scalar{"lr", math.Inf(1)}))
	}
	require.NoError(t, e.Close())
	resumed, err := OpenEvents(dir, now.Add(-time.Hour), 3) // a clock that was set back
	require.NoError(t, err)
	require.NoError(t, resumed.Write(now, 3, Scalar{"loss/train", 0.5}))
	require.NoError(t, resumed.Close())

	files, err := filepath.Glob(filepath.Join(dir, "events.out.tfevents.*"))
	require.NoError(t, err)
	require.Len(t, files, 2, "files of one second have different names, in the order of the runs")
	require.IsIncreasing(t, files)

	inf := float32(math.Inf(1))
	require.Equal(t, []event{
		{version: "brain.Event:2", time: 1_700_000_000.25, scalars: map[string]float32{}},
		{time: 1_700_000_000.25, step: 1, start: true, scalars: map[string]float32{}},
		{time: 1_700_000_001.25, step: 1, scalars: map[string]float32{"loss/train": 1, "lr": inf}},
		{time: 1_700_000_002.25, step: 2, scalars: map[string]float32{"loss/train": 0.5, "lr": inf}},
		{time: 1_700_000_003.25, step: 3, scalars: map[string]float32{"loss/train": 1.0 / 3, "lr": inf}},
	}, readEvents(t, files[0]))
	second := readEvents(t, files[1])
	require.Len(t, second, 3)
	require.True(t, second[1].start)
	require.Equal(t, int64(3), second[1].step, "TensorBoard discards step 3 of earlier files")
}
