package libsynapse

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestErrorsNameTheStatus(t *testing.T) {
	for want, e := range map[string]Error{
		"synLaunch returned 30 (synFailedSectionValidation): Sections validation failed": {"synLaunch", 30, "Sections validation failed"},
		"synGraphCompile returned 26 (synFail)":                                          {"synGraphCompile", 26, "synFail"},
		"synLaunch returned 99 (unknown status): news":                                   {"synLaunch", 99, "news"},
		"hcclAllReduce returned 2 (hcclUnsupported)":                                     {"hcclAllReduce", 2, ""},
		"hlml_init returned 9 (HLML_ERROR_DRIVER_NOT_LOADED)":                            {"hlml_init", 9, ""},
		"calloc returned -1 (unknown status)":                                            {"calloc", -1, ""},
	} {
		require.EqualError(t, fmt.Errorf("here: %w", &e), "here: "+want)
	}
}

// A status is classified by its library.
func TestErrorsAreClassified(t *testing.T) {
	for _, c := range []struct {
		call                     string
		status                   int
		outOfMemory, lost, taken bool
	}{
		{"synDeviceMalloc", 4, true, false, false},
		{"synDeviceMalloc", 14, true, false, false},
		{"synHostMalloc", 3, false, false, false}, // out of host memory
		{"hcclAllReduce", 3, true, false, false},
		{"hcclAllReduce", 4, false, false, false},
		{"hlml_init", 4, false, false, false},
		{"synStreamSynchronize", 17, false, true, false},
		{"synStreamSynchronize", 31, false, true, false},
		{"synStreamSynchronize", 15, false, false, false}, // failed to free memory
		{"hcclAllReduce", 15, false, true, false},
		{"hcclAllReduce", 31, false, false, false},
		{"hlml_device_get_power_usage", 15, false, true, false},
		{"synDeviceAcquireByModuleId", 8, false, false, true}, // no device found is not a lost device
		{"synDeviceAcquireByModuleId", 26, false, false, false},
		{"hcclCommInitRank", 8, false, false, false},
	} {
		e := &Error{Call: c.call, Status: c.status}
		require.Equal(t, c.outOfMemory, e.OutOfMemory(), "%+v", e)
		require.Equal(t, c.lost, e.DeviceLost(), "%+v", e)
		require.Equal(t, c.taken, e.DeviceBusy(), "%+v", e)
	}
}
