package libsynapse

import "fmt"

// DeviceType is a synDeviceType.
type DeviceType int32

// The devices that compute in FP8, with the values of synapse_common_types.h.
const (
	Gaudi2 DeviceType = 4
	Gaudi3 DeviceType = 5
)

func (t DeviceType) String() string {
	switch t {
	case Gaudi2:
		return "gaudi2"
	case Gaudi3:
		return "gaudi3"
	}
	return fmt.Sprintf("synDeviceType(%d)", int32(t))
}

// Ptr is an address in device memory; 0 is null.
type Ptr uint64

// Reduction is the operator of a reducing collective. HCCL also has minima. Its header
// lists a mean and a product, but HCCL supports neither.
type Reduction int

const (
	Sum Reduction = iota
	Max
)

// Reading holds a device's sensor values. nil means that the device, or this version of
// its library, does not report the value.
type Reading struct {
	Utilization      *float64 // fraction of the time that the engines are busy, 0 to 1
	MemoryUsed       *float64 // bytes
	MemoryTotal      *float64 // bytes
	Power            *float64 // watts
	Energy           *float64 // joules since the driver was loaded
	Temperature      *float64 // of the chip, °C
	Clock            *float64 // Hz
	ThrottledByPower *bool    // the clock is lowered because of the power drawn
	ThrottledByHeat  *bool    // the clock is lowered because of the temperature
}
