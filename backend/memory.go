package backend

import (
	"fmt"
	"strings"
)

// Outline describes the memory and the launches of a set of lowered programs, as far
// as they are known without a device.
type Outline struct {
	// Temps is the bytes of all temps: an estimate if a vendor's compiler places
	// them, otherwise the bytes that are allocated.
	Temps int64
	// Extra lists what else is allocated, except for the variables.
	Extra []Share
	// Outside estimates the device memory that a process takes in addition to what
	// the backend allocates.
	Outside []Share
	// Launches counts the units of each program if the driver compiles units of
	// several ops; else nil.
	Launches []Launches
}

// Launches counts the compiled units of one program.
type Launches struct {
	Launches int // units launched, one after the other
	Compiled int // distinct units
}

// Share is a named part of a device's memory.
type Share struct {
	Name  string
	Bytes int64
}

// Capacity is the memory of a device model.
type Capacity struct {
	Device string // product name: "H100 (80 GB)"
	Bytes  int64  // as the device reports it, rounded down to GiB
}

// Usage is the use of a device's memory at one moment, in bytes.
type Usage struct {
	Allocated int64 // by this backend
	Used      int64 // in total, including other backends, libraries and processes
	Total     int64 // the device's memory
}

// Outside returns the bytes used but not allocated by this backend. On a device without
// other users, the vendor's driver and libraries take them for this process.
func (u Usage) Outside() int64 { return u.Used - u.Allocated }

// UsageReporter is a Backend that reports how its device's memory is used.
type UsageReporter interface {
	Backend
	Usage() (Usage, error)
}

// Aligned rounds bytes up to a multiple of align.
func Aligned(bytes, align int64) int64 { return (bytes + align - 1) / align * align }

// Size formats bytes in binary units: "80 GiB", "0.35 MiB".
func Size(bytes int64) string {
	number, unit := float64(bytes)/(1<<20), "MiB"
	if bytes >= 1<<30 {
		number, unit = number/(1<<10), "GiB"
	}
	return strings.TrimSuffix(fmt.Sprintf("%.2f", number), ".00") + " " + unit
}

// OutOfMemory returns an error that wraps ErrOutOfMemory and err, the driver's error.
// what names the operation that failed, asked is the bytes that it requested, and free
// and total are the device's memory; asked and total are 0 if unknown.
func OutOfMemory(what string, asked, free, total int64, err error) error {
	var had []string
	if asked > 0 {
		had = append(had, "asked for "+Size(asked))
	}
	if total > 0 {
		had = append(had, fmt.Sprintf("%s of the device's %s are free", Size(free), Size(total)))
	}
	if len(had) > 0 {
		err = fmt.Errorf("%s (%w)", strings.Join(had, ", "), err)
	}
	return fmt.Errorf("%s: %w: %w; training needs less with a smaller train.micro_batch or train.recompute=block", what, ErrOutOfMemory, err)
}
