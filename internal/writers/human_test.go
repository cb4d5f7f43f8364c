package writers

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBytesAndQuantity(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 7: "7 B", 950: "950 B", 999: "999 B", 1000: "1.0 kB", 1540: "1.5 kB", 9949: "9.9 kB", 9950: "10 kB",
		31_400_000: "31 MB", 999_499: "999 kB", 999_500: "1.0 MB", 139e9: "139 GB", math.MaxInt64: "9.2 EB", -2000: "-2.0 kB",
	} {
		require.Equal(t, want, Bytes(n), n)
	}
	require.Equal(t, "71 GFLOP/s", Quantity(71.2e9, "FLOP/s"))
	require.Equal(t, "12345 EFLOP/s", Quantity(12345e18, "FLOP/s"))
	require.Equal(t, "nan FLOP/s", Quantity(math.NaN(), "FLOP/s"))
	require.Equal(t, "inf FLOP/s", Quantity(math.Inf(1), "FLOP/s"))
}

func TestCount(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0", 999: "999", 1000: "1,000", 18204: "18,204", 669952: "669,952", 999_994: "999,994", 999_995: "1.00M",
		1_000_000: "1.00M", 13_764_480: "13.76M", 999_990_000: "999.99M", 999_995_000: "1.00B", 6_738_415_616: "6.74B",
		15e12: "15.00T", math.MaxInt64: "9223372.04T", -1234: "-1,234", -100: "-100", -2_500_000: "-2.50M", math.MinInt64: "-9223372.04T",
	} {
		require.Equal(t, want, Count(n), n)
	}
}

func TestClock(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0:00", -time.Second: "0:00", 42 * time.Second: "0:42", 42*time.Second + 600*time.Millisecond: "0:43",
		59*time.Second + 600*time.Millisecond: "1:00", time.Hour + 2*time.Minute + 3*time.Second: "1:02:03",
		24 * time.Hour: "1d 00:00:00", 50*time.Hour + 61*time.Second: "2d 02:01:01",
	} {
		require.Equal(t, want, Clock(d), d)
	}
}
