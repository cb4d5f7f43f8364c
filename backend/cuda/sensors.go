//go:build cuda && cgo && linux

package cuda

import (
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"octet/backend"
)

// sensors are those of one GPU, as NVML reads them.
type sensors struct {
	lib nvmlLibrary
	gpu nvml.Device
	bus string
}

// Sensors implements backend.Sensed. With several processes or MIG instances on
// a GPU it tells of the whole board.
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

// findSensors looks a GPU up in a library that was started. It goes by the PCI
// bus, because NVML and CUDA count GPUs each in an order of their own, and
// CUDA_VISIBLE_DEVICES changes CUDA's.
func findSensors(lib nvmlLibrary, bus string) (*sensors, error) {
	if bus == "" {
		return nil, errors.New("the CUDA driver does not tell which of NVML's GPUs this one is")
	}
	nvmlTurn.Lock()
	defer nvmlTurn.Unlock()
	gpu, r := lib.DeviceGetHandleByPciBusId(bus)
	if r != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML does not show the GPU at %s: %w", bus, r)
	}
	return &sensors{lib, gpu, bus}, nil
}

// Close lets the library go.
func (s *sensors) Close() error { return stopNVML(s.lib) }

// Read implements backend.Sensors. Units and meanings are those of nvml.h.
func (s *sensors) Read() (r backend.Reading, err error) {
	nvmlTurn.Lock()
	defer nvmlTurn.Unlock()
	if u, ok := ask(s, &err, "nvmlDeviceGetUtilizationRates", s.gpu.GetUtilizationRates); ok {
		r.Utilization = new(float64(u.Gpu) / 100)
	}
	if m, ok := ask(s, &err, "nvmlDeviceGetMemoryInfo", s.gpu.GetMemoryInfo); ok {
		r.MemoryUsed, r.MemoryTotal = new(int64(m.Used)), new(int64(m.Total))
	}
	// The mean of the last second from Ampere on, but for GA100.
	if milliwatts, ok := ask(s, &err, "nvmlDeviceGetPowerUsage", s.gpu.GetPowerUsage); ok {
		r.Power = new(float64(milliwatts) / 1000)
	}
	celsius := func() (uint32, nvml.Return) { return s.gpu.GetTemperature(nvml.TEMPERATURE_GPU) }
	if t, ok := ask(s, &err, "nvmlDeviceGetTemperature", celsius); ok {
		r.Temperature = new(float64(t))
	}
	megahertz := func() (uint32, nvml.Return) { return s.gpu.GetClockInfo(nvml.CLOCK_SM) }
	if f, ok := ask(s, &err, "nvmlDeviceGetClockInfo", megahertz); ok {
		r.Clock = new(float64(f))
	}
	// Drivers have the function under this name and, later ones, under a second.
	if bits, ok := ask(s, &err, "nvmlDeviceGetCurrentClocksThrottleReasons", s.gpu.GetCurrentClocksThrottleReasons); ok {
		r.Throttled = throttled(bits)
	}
	// Counted since the driver was loaded; from Volta on.
	if millijoules, ok := ask(s, &err, "nvmlDeviceGetTotalEnergyConsumption", s.gpu.GetTotalEnergyConsumption); ok {
		r.Energy = new(float64(millijoules) / 1000)
	}
	if err != nil {
		return backend.Reading{}, err
	}
	return r, nil
}

// untold are the answers of NVML that say that there is no answer, now or ever.
var untold = []nvml.Return{
	nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NO_PERMISSION, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_NO_DATA, nvml.ERROR_DEPRECATED,
}

// ask makes one call of NVML; ok says that it brought something. Functions that
// the library lacks are not called: that would end the process. What fails goes
// to err, and after it nothing is asked any more.
func ask[T any](s *sensors, err *error, function string, call func() (T, nvml.Return)) (x T, ok bool) {
	if *err != nil || s.lib.Extensions().LookupSymbol(function) != nil {
		return x, false
	}
	x, r := call()
	if r != nvml.SUCCESS && !slices.Contains(untold, r) {
		*err = fmt.Errorf("%s of the GPU at %s: %w", function, s.bus, r)
	}
	return x, r == nvml.SUCCESS
}

// throttled names the bits of nvmlClocksThrottleReasons (nvml.h), but for the
// lowest: an idle GPU lowers its clock, and nobody waits for it.
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
