package backend

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadingString(t *testing.T) {
	require.Equal(t, "does not report utilisation, memory, power, temperature, clock, throttling, energy", Reading{}.String())
	r := Reading{
		Utilization: new(0.0), MemoryUsed: new(int64(3 << 29)), MemoryTotal: new(int64(80 << 30)),
		Power: new(71.4), Temperature: new(41.0), Clock: new(1980.0), Throttled: []string{}, Energy: new(1e6),
	}
	require.Equal(t, "0% busy, 1.5 of 80.0 GiB used, 71 W, 41 °C, 1980 MHz, not throttled, counts its energy", r.String())
	r.Throttled = []string{"power cap", "heat"}
	r.MemoryTotal, r.Temperature = nil, nil
	require.Equal(t, "0% busy, 71 W, 1980 MHz, throttled by power cap and heat, counts its energy; does not report memory, temperature", r.String())
}
