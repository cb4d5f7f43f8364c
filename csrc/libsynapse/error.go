package libsynapse

import (
	"fmt"
	"strings"
)

// Error is a failed call of a library.
type Error struct {
	Call   string // the prefix tells the library: syn, hccl, hlml
	Status int    // synStatus, hcclResult_t or hlml_return_t
	Text   string // the library's text for the status, if any
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s returned %d (%s)", e.Call, e.Status, e.Name())
	if e.Text != "" && e.Text != e.Name() {
		s += ": " + e.Text
	}
	return s
}

// Name returns the vendor's name of the status, to search for in its documentation and
// forum.
func (e *Error) Name() string {
	if name, ok := e.names()[e.Status]; ok {
		return name
	}
	return "unknown status"
}

func (e *Error) names() map[int]string {
	switch {
	case strings.HasPrefix(e.Call, "syn"):
		return synStatus
	case strings.HasPrefix(e.Call, "hccl"):
		return hcclResult
	case strings.HasPrefix(e.Call, "hlml"):
		return hlmlReturn
	}
	return nil
}

// OutOfMemory reports whether the device lacked the requested memory.
func (e *Error) OutOfMemory() bool {
	switch e.Name() {
	case "synOutOfDeviceMemory", "synFailedToAllocateDeviceMemory", "hcclOutOfMemory":
		return true
	}
	return false
}

// DeviceBusy reports whether a device is unavailable because another process holds it, or
// released it a moment ago. SynapseAI's runtime returns this status if the driver does
// not let it open a device, and itself waits while the driver resets one
// (osal_linux.cpp).
func (e *Error) DeviceBusy() bool { return e.Name() == "synNoDeviceFound" }

// DeviceLost reports whether the device is lost: every further call fails until another
// process acquires it.
func (e *Error) DeviceLost() bool {
	switch e.Name() {
	case "synDeviceReset", "synSynapseTerminated", "synAssertAsync", "hcclSynapseTerminated", "HLML_ERROR_AIP_IS_LOST":
		return true
	}
	return false
}

// synStatus is the enumeration of synapse_common_types.h.
var synStatus = map[int]string{
	0:  "synSuccess",
	1:  "synInvalidArgument",
	2:  "synCbFull",
	3:  "synOutOfHostMemory",
	4:  "synOutOfDeviceMemory",
	5:  "synObjectAlreadyInitialized",
	6:  "synObjectNotInitialized",
	7:  "synCommandSubmissionFailure",
	8:  "synNoDeviceFound",
	9:  "synDeviceTypeMismatch",
	10: "synFailedToInitializeCb",
	11: "synFailedToFreeCb",
	12: "synFailedToMapCb",
	13: "synFailedToUnmapCb",
	14: "synFailedToAllocateDeviceMemory",
	15: "synFailedToFreeDeviceMemory",
	16: "synFailedNotEnoughDevicesFound",
	17: "synDeviceReset",
	18: "synUnsupported",
	19: "synWrongParamsFile",
	20: "synDeviceAlreadyAcquired",
	21: "synNameIsAlreadyUsed",
	22: "synBusy",
	23: "synAllResourcesTaken",
	24: "synUnavailable",
	25: "synInvalidTensorDimensions",
	26: "synFail",
	27: "synOutOfResources",
	28: "synUninitialized",
	29: "synAlreadyInitialized",
	30: "synFailedSectionValidation",
	31: "synSynapseTerminated",
	32: "synAssertAsync",
	33: "synInvalidEventHandle",
	34: "synMappingNotFound",
	35: "synFailedDynamicPatching",
	36: "synFailedStaticPatching",
	37: "synFailedToSubmitWorkload",
	38: "synInvalidSectionsDefinition",
	39: "synInvalidTensorProperties",
	40: "synFailHccl",
	41: "synFailedToCollectTime",
	42: "synTimeout",
	43: "synResourceBadUsage",
}

// hcclResult is the enumeration of hccl_types.h.
var hcclResult = map[int]string{
	-1: "hcclUninitialized",
	0:  "hcclSuccess",
	1:  "hcclNoDeviceFound",
	2:  "hcclUnsupported",
	3:  "hcclOutOfMemory",
	4:  "hcclUnhandledSynapseError",
	5:  "hcclSystemError",
	6:  "hcclInternalError",
	7:  "hcclInvalidArgument",
	8:  "hcclInvalidUsage",
	9:  "hcclSocketError",
	10: "hcclLibfabricError",
	11: "hcclTryAgainError",
	12: "hcclBusy",
	13: "hcclNumResults",
	14: "hcclStreamError",
	15: "hcclSynapseTerminated",
	16: "hcclPortDown",
}

// hlmlReturn is the enumeration of hlml.h.
var hlmlReturn = map[int]string{
	0:  "HLML_SUCCESS",
	1:  "HLML_ERROR_UNINITIALIZED",
	2:  "HLML_ERROR_INVALID_ARGUMENT",
	3:  "HLML_ERROR_NOT_SUPPORTED",
	5:  "HLML_ERROR_ALREADY_INITIALIZED",
	6:  "HLML_ERROR_NOT_FOUND",
	7:  "HLML_ERROR_INSUFFICIENT_SIZE",
	9:  "HLML_ERROR_DRIVER_NOT_LOADED",
	10: "HLML_ERROR_TIMEOUT",
	15: "HLML_ERROR_AIP_IS_LOST",
	20: "HLML_ERROR_MEMORY",
	21: "HLML_ERROR_NO_DATA",
	49: "HLML_ERROR_UNKNOWN",
}
