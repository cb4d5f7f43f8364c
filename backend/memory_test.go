package backend_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

func TestAligned(t *testing.T) {
	for bytes, want := range map[int64]int64{0: 0, 1: 256, 255: 256, 256: 256, 257: 512} {
		require.Equal(t, want, backend.Aligned(bytes, 256), bytes)
	}
}

func TestSize(t *testing.T) {
	require.Equal(t, "80 GiB", backend.Size(80<<30))
	require.Equal(t, "1.50 GiB", backend.Size(3<<29))
	require.Equal(t, "512 MiB", backend.Size(1<<29))
	require.Equal(t, "0.35 MiB", backend.Size(368128))
}

func TestOutOfMemory(t *testing.T) {
	driver := errors.New("malloc returned 2")
	const change = "; training needs less with a smaller train.micro_batch or train.recompute=block"
	for want, err := range map[string]error{
		"cuda: load: out of memory: asked for 2 GiB, 1 MiB of the device's 80 GiB are free (malloc returned 2)": backend.OutOfMemory("cuda: load", 2<<30, 1<<20, 80<<30, driver),
		"cuda: load: out of memory: 0 MiB of the device's 80 GiB are free (malloc returned 2)":                  backend.OutOfMemory("cuda: load", 0, 0, 80<<30, driver),
		"cuda: load: out of memory: asked for 2 GiB (malloc returned 2)":                                        backend.OutOfMemory("cuda: load", 2<<30, 0, 0, driver),
		"cuda: load: out of memory: malloc returned 2":                                                          backend.OutOfMemory("cuda: load", 0, 0, 0, driver),
	} {
		require.EqualError(t, err, want+change)
		require.ErrorIs(t, err, backend.ErrOutOfMemory)
		require.ErrorIs(t, err, driver)
	}
}
