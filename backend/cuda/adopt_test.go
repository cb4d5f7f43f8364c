//go:build cuda && cgo && linux

package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/csrc/libcuda"
	"octet/csrc/standin"
)

// sharing returns a context with allocated memory, as other code of the process would own
// it. The test's cleanup checks that the adopting backends leave nothing behind.
func sharing(t *testing.T, bytes int) (owner *libcuda.Device, at libcuda.Ptr) {
	t.Helper()
	standIns(t)
	owner, err := libcuda.Open(0)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, owner.Close())
		if standin.Hardware() == 0 { // a real driver may dereference a destroyed context
			_, _, err := owner.Memory()
			require.Error(t, err, "the context is destroyed")
		}
	})
	at, err = owner.Alloc(bytes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, owner.Free(at)) })
	return owner, at
}

// adopting returns a backend in the same context, on a stream that the owner made.
func adopting(t *testing.T, owner *libcuda.Device, external map[string]Region) (*device, *libcuda.Stream) {
	t.Helper()
	s, err := owner.NewStream()
	require.NoError(t, err)
	d, err := libcuda.Open(0)
	require.NoError(t, err)
	b, err := Adopt(d, s, external)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b.(*device), s
}

// A program reads and writes external memory in place, in the order of the stream.
func TestAdopt(t *testing.T) {
	const rows, cols, bytes = 4, 64, 4 * 4 * 64
	owner, at := sharing(t, 4*bytes)
	_, p, a, b, out := adding(rows, cols)
	d, s := adopting(t, owner, map[string]Region{"a": {at, bytes}, "out": {at + 2*bytes, 2 * bytes}})

	require.NoError(t, s.Upload(at, floats(rows*cols, func(i int) float32 { return float32(i) })))
	list, err := d.Load(p)
	require.NoError(t, err)
	require.Equal(t, b.Bytes(), d.allocated-int64(list[0].(*executable).plan.Bytes), "of the variables, b alone is allocated")
	require.NoError(t, d.Write(b, floats(rows*cols, func(int) float32 { return 1 })))
	got := make([]byte, bytes)
	for _, add := range []float32{2, 4, 6} { // out = a + 2·b, the second run recorded, the third repeated
		require.NoError(t, list[0].Run(t.Context()))
		require.NoError(t, s.Copy(at+bytes, at+2*bytes, bytes))
		require.NoError(t, s.Copy(at, at+bytes, bytes)) // a = out, for the next round
		require.NoError(t, s.Download(got, at+bytes))
		require.Equal(t, floats(rows*cols, func(i int) float32 { return float32(i) + add }), got)
	}
	require.NoError(t, d.Read(out, got))
	require.Equal(t, floats(rows*cols, func(i int) float32 { return float32(i) + 6 }), got)
	require.NoError(t, d.Read(a, got))
	require.Equal(t, floats(rows*cols, func(i int) float32 { return float32(i) + 6 }), got)
}

// A backend whose variables are all external allocates and clears nothing.
func TestAllVariablesAreExternal(t *testing.T) {
	const bytes = 4 * 4 * 64
	owner, at := sharing(t, 3*bytes)
	_, p, _, _, out := adding(4, 64)
	d, _ := adopting(t, owner, map[string]Region{"a": {at, bytes}, "b": {at + bytes, bytes}, "out": {at + 2*bytes, bytes}})
	_, err := d.Load(p)
	require.NoError(t, err)
	require.NoError(t, d.Write(out, make([]byte, bytes)))
}

func TestExternalMemoryIsChecked(t *testing.T) {
	owner, at := sharing(t, 4096)
	for want, external := range map[string]map[string]Region{
		"there is no variable of that name":                                            {"x": {at, 4096}},
		"the external memory of a:fp32[4, 64] has 1023 bytes, the variable needs 1024": {"a": {at, 1023}},
		"align it to 256 bytes":                                                        {"a": {at + 16, 2048}},
		"is at 0x0":                                                                    {"a": {0, 2048}},
		"the external memory of a:fp32[4, 64] and b:fp32[4, 64] overlaps":              {"a": {at, 4096}, "b": {at + 768, 1024}},
		"the external memory of b:fp32[4, 64] and out:fp32[4, 64] overlaps":            {"a": {at, 1024}, "b": {at + 1024, 1024}, "out": {at + 1024, 1024}},
	} {
		_, p, _, _, _ := adding(4, 64)
		d, _ := adopting(t, owner, external)
		_, err := d.Load(p)
		require.ErrorContains(t, err, want)
	}
}

func TestAdoptUnfit(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_CAPABILITY", "80")
	d, err := libcuda.Open(0)
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	_, err = Adopt(d, d.AdoptStream(0), nil)
	require.ErrorIs(t, err, backend.ErrNoDevice)
	require.ErrorContains(t, err, "the context's GPU: Stand-in 0, compute capability 8.0")
}
