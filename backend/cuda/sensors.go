//go:build cuda && cgo && linux

package cuda

import (
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"octet/backend"
)

// sensors are the sensors of one GPU, as NVML reads them.
type sensors struct {
	lib nvmlLibrary
	gpu nvml.Device
	bus string
}

// Sensors implements backend.Sensed. They measure the whole board, including other
// processes and MIG instances.
func (d *device) Sensors() (backend.Sensors, error) {
	lib := newNVML()
	if err := startNVML(lib); err != nil {
		return nil, err
	}
	s, err := findSensors(lib, d.Bus)
	if err != nil {
		return nil, errors.Join(err, stopNVML(lib))
	}
	return s, nil
}

// findSensors finds a GPU by its PCI bus in a started library. NVML and CUDA number GPUs
// in different orders, and CUDA_VISIBLE_DEVICES changes CUDA's.
func findSensors(lib nvmlLibrary, bus string) (*sensors, error) {
	if bus == "" {
		return nil, errors.New("the CUDA driver does not report the GPU's PCI bus, by which NVML finds it")
	}
	nvmlMutex.Lock()
	defer nvmlMutex.Unlock()
	gpu, r := lib.DeviceGetHandleByPciBusId(bus)
	if r != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML does not show the GPU at %s: %w", bus, r)
	}
	return &sensors{lib, gpu, bus}, nil
}

// Close closes the library.
func (s *sensors) Close() error { return stopNVML(s.lib) }

// Read implements backend.Sensors. nvml.h defines units and meanings.
func (s *sensors) Read() (r backend.Reading, err error) {
	nvmlMutex.Lock()
	defer nvmlMutex.Unlock()
	if u, ok := query(s, &err, "nvmlDeviceGetUtilizationRates", s.gpu.GetUtilizationRates); ok {
		r.Utilization = new(float64(u.Gpu) / 100)
	}
	if m, ok := query(s, &err, "nvmlDeviceGetMemoryInfo", s.gpu.GetMemoryInfo); ok {
		r.MemoryUsed, r.MemoryTotal = new(int64(m.Used)), new(int64(m.Total))
	}
	// The mean over the last second on Ampere (except GA100) and later.
	if milliwatts, ok := query(s, &err, "nvmlDeviceGetPowerUsage", s.gpu.GetPowerUsage); ok {
		r.Power = new(float64(milliwatts) / 1000)
	}
	celsius := func() (uint32, nvml.Return) { return s.gpu.GetTemperature(nvml.TEMPERATURE_GPU) }
	if t, ok := query(s, &err, "nvmlDeviceGetTemperature", celsius); ok {
		r.Temperature = new(float64(t))
	}
	megahertz := func() (uint32, nvml.Return) { return s.gpu.GetClockInfo(nvml.CLOCK_SM) }
	if f, ok := query(s, &err, "nvmlDeviceGetClockInfo", megahertz); ok {
		r.Clock = new(float64(f))
	}
	// All drivers have this name of the function; later ones also have a second name.
	if bits, ok := query(s, &err, "nvmlDeviceGetCurrentClocksThrottleReasons", s.gpu.GetCurrentClocksThrottleReasons); ok {
		r.Throttled = throttled(bits)
	}
	// Energy since the driver was loaded; Volta and later.
	if millijoules, ok := query(s, &err, "nvmlDeviceGetTotalEnergyConsumption", s.gpu.GetTotalEnergyConsumption); ok {
		r.Energy = new(float64(millijoules) / 1000)
	}
	if err != nil {
		return backend.Reading{}, err
	}
	return r, nil
}

// unavailable are the errors of NVML that mean that there is no value.
var unavailable = []nvml.Return{
	nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NO_PERMISSION, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_NO_DATA, nvml.ERROR_DEPRECATED,
}

// query calls one function of NVML; ok reports whether it returned a value. Functions
// that the library lacks are not called, because that would end the process. The first
// error is stored in err, and later queries are skipped.
func query[T any](s *sensors, err *error, function string, call func() (T, nvml.Return)) (x T, ok bool) {
	if *err != nil || s.lib.Extensions().LookupSymbol(function) != nil {
		return x, false
	}
	x, r := call()
	if r != nvml.SUCCESS && !slices.Contains(unavailable, r) {
		*err = fmt.Errorf("%s of the GPU at %s: %w", function, s.bus, r)
	}
	return x, r == nvml.SUCCESS
}

// throttled names the bits of nvmlClocksThrottleReasons (nvml.h) except the lowest: an
// idle GPU lowers its clock, which is no reason for concern.
func throttled(bits uint64) []string {
	words := []string{}
	for _, reason := range []struct {
		bit  uint64
		word string
	}{
		{nvml.ClocksThrottleReasonApplicationsClocksSetting, "clock setting"},
		{nvml.ClocksThrottleReasonSwPowerCap, "power cap"},
		{nvml.ClocksThrottleReasonHwSlowdown, "hardware slowdown"},
		{nvml.ClocksThrottleReasonSyncBoost, "sync boost"},
		{nvml.ClocksThrottleReasonSwThermalSlowdown, "heat"},
		{nvml.ClocksThrottleReasonHwThermalSlowdown, "heat, hardware"},
		{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, "power brake"},
		{nvml.ClocksThrottleReasonDisplayClockSetting, "display clock"},
	} {
		if bits&reason.bit != 0 {
			words = append(words, reason.word)
			bits &^= reason.bit
		}
	}
	if bits &^= nvml.ClocksThrottleReasonGpuIdle; bits != 0 {
		words = append(words, fmt.Sprintf("reasons %#x", bits))
	}
	return words
}
