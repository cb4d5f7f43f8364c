//go:build gaudi && cgo && linux

package gaudi

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/csrc/libsynapse"
	"octet/csrc/standin"
)

func TestSensors(t *testing.T) {
	devices(t, "gaudi2", "1")
	t.Setenv("OCTET_LIBHLML", standin.Build(t, "libhlml"))
	opened, err := open("", backend.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, opened.Close()) })
	d := opened.(backend.Sensed)
	s, err := d.Sensors()
	if err != nil { // the HLML stand-in's only device has another address than SynapseAI's
		require.ErrorContains(t, err, d.(*device).hardware().Bus)
		return
	}
	r, err := s.Read()
	require.NoError(t, err)
	require.Positive(t, *r.Power)
	require.NoError(t, s.Close())
}

func TestReadingUnits(t *testing.T) {
	r := readingOf(libsynapse.Reading{
		Utilization: new(0.75), MemoryUsed: new(6e9), MemoryTotal: new(96e9), Power: new(412.5), Energy: new(5e9),
		Temperature: new(62.0), Clock: new(1.5e9),
		ThrottledByPower: new(false), ThrottledByHeat: new(true),
	})
	require.Equal(t, backend.Reading{
		Utilization: new(0.75), MemoryUsed: new(int64(6e9)), MemoryTotal: new(int64(96e9)), Power: new(412.5), Energy: new(5e9),
		Temperature: new(62.0), Clock: new(1500.0), Throttled: []string{"heat"},
	}, r)
	require.Equal(t, backend.Reading{}, readingOf(libsynapse.Reading{}), "unknown values must stay nil")
	require.Equal(t, []string{}, readingOf(libsynapse.Reading{ThrottledByPower: new(false), ThrottledByHeat: new(false)}).Throttled)
}
