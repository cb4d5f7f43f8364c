//go:build gaudi && cgo && linux

package libsynapse

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/csrc/standin"
)

const bus = "0000:03:00.0" // of a device of the stand-in

func telemetry(t *testing.T) *Telemetry {
	t.Setenv("OCTET_LIBHLML", standin.Build(t, "libhlml"))
	m, err := OpenTelemetry(bus)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func TestTelemetryUnits(t *testing.T) {
	m := telemetry(t)
	r, err := m.Read()
	require.NoError(t, err)
	first := *r.Energy
	require.Greater(t, first, 5e9)
	require.Equal(t, Reading{
		Utilization: new(0.75),
		MemoryUsed:  new(6.0 * (1 << 30)), MemoryTotal: new(96.0 * (1 << 30)),
		Power: new(412.5), Energy: &first,
		Temperature: new(62.0), Clock: new(1.5e9),
		ThrottledByPower: new(false), ThrottledByHeat: new(true),
	}, r)
	again, err := m.Read()
	require.NoError(t, err)
	require.Equal(t, first+5, *again.Energy, "energy must be a running total, in joules")
}

// A value that the device does not support or fails to return is unknown, and all other
// values are present.
func TestTelemetryOmitsUnknownValues(t *testing.T) {
	for _, how := range []string{"STANDIN_HLML_SILENT", "STANDIN_HLML_ODD"} {
		t.Run(how, func(t *testing.T) { omits(t, telemetry(t), how) })
	}
}

func omits(t *testing.T, m *Telemetry, how string) {
	for function, missing := range map[string]func(*Reading) []any{
		"utilization_rates":               func(r *Reading) []any { return []any{r.Utilization} },
		"memory_info":                     func(r *Reading) []any { return []any{r.MemoryUsed, r.MemoryTotal} },
		"power_usage":                     func(r *Reading) []any { return []any{r.Power} },
		"total_energy_consumption":        func(r *Reading) []any { return []any{r.Energy} },
		"temperature":                     func(r *Reading) []any { return []any{r.Temperature} },
		"clock_info":                      func(r *Reading) []any { return []any{r.Clock} },
		"current_clocks_throttle_reasons": func(r *Reading) []any { return []any{r.ThrottledByPower, r.ThrottledByHeat} },
	} {
		t.Setenv(how, "hlml_device_get_"+function)
		r, err := m.Read()
		require.NoError(t, err)
		for _, value := range missing(&r) {
			require.Nil(t, value, function)
		}
		all := []any{
			r.Utilization, r.MemoryUsed, r.MemoryTotal, r.Power, r.Energy, r.Temperature,
			r.Clock, r.ThrottledByPower, r.ThrottledByHeat,
		}
		known := 0
		for _, value := range all {
			switch v := value.(type) {
			case *float64:
				if v != nil {
					known++
				}
			case *bool:
				if v != nil {
					known++
				}
			}
		}
		require.Equal(t, len(all)-len(missing(&r)), known, function)
	}
}

func TestTelemetryErrors(t *testing.T) {
	m := telemetry(t)
	_, err := OpenTelemetry("0000:4e:00.0")
	require.EqualError(t, err, "the Gaudi at 0000:4e:00.0: hlml_device_get_handle_by_pci_bus_id returned 6 (HLML_ERROR_NOT_FOUND)")

	t.Setenv("STANDIN_HLML_LOST", "hlml_device_get_power_usage")
	_, err = m.Read()
	require.EqualError(t, err, "hlml_device_get_power_usage returned 15 (HLML_ERROR_AIP_IS_LOST)")
	var e *Error
	require.ErrorAs(t, err, &e)
	require.True(t, e.DeviceLost())

	t.Setenv("STANDIN_HLML_LOST", "")
	t.Setenv("STANDIN_HLML_ODD", "all")
	_, err = m.Read()
	require.EqualError(t, err, "hlml_device_get_utilization_rates returned 49 (HLML_ERROR_UNKNOWN)", "no value is known")

	missing := filepath.Join(t.TempDir(), "missing.so")
	t.Setenv("OCTET_LIBHLML", missing)
	_, err = OpenTelemetry(bus)
	require.ErrorContains(t, err, missing)
	nvml := standin.Build(t, "libnvidia-ml")
	t.Setenv("OCTET_LIBHLML", nvml)
	_, err = OpenTelemetry(bus)
	require.EqualError(t, err, nvml+" has no hlml_init")
}

// A library without a query's function is like a device without the value.
func TestTelemetryOfAnOldLibrary(t *testing.T) {
	dir := t.TempDir()
	source, library := filepath.Join(dir, "old.c"), filepath.Join(dir, "old.so")
	require.NoError(t, os.WriteFile(source, []byte(`
		int hlml_init(void) { return 0; }
		int hlml_shutdown(void) { return 0; }
		int hlml_device_get_handle_by_pci_bus_id(const char *bus, void **device) { *device = 0; return 0; }
		int hlml_device_get_power_usage(void *device, unsigned *milliwatts) { *milliwatts = 1000; return 0; }
	`), 0o666))
	out, err := exec.Command(cmp.Or(os.Getenv("CC"), "gcc"), "-shared", "-fPIC", "-o", library, source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Setenv("OCTET_LIBHLML", library)
	m, err := OpenTelemetry(bus)
	require.NoError(t, err)
	r, err := m.Read()
	require.NoError(t, err)
	require.Equal(t, Reading{Power: new(1.0)}, r)
	require.NoError(t, m.Close())
}
