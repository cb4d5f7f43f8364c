package backend

import (
	"fmt"
	"strings"
)

// Outline is what a set of lowered programs takes on a device, as far as that can
// be told without one.
type Outline struct {
	// Temps is the bytes of all temps: an estimate where a compiler has the last
	// word, otherwise what is allocated.
	Temps int64
	// Beside is what else is allocated, but for the variables.
	Beside []Share
	// Outside is an estimate of what a process takes of a device's memory beyond
	// what the backend allocates.
	Outside []Share
	// Launches says how each program runs, where the driver compiles units of
	// several ops; else nil.
	Launches []Launches
}

// OutlineOf is Outline for every driver: one without has the temps of MakePlan alone.
func (d Driver) OutlineOf(s Spec, lowered []*Program) (Outline, error) {
	if d.Outline == nil {
		return Outline{Temps: MakePlan(s.Align, PerOp, lowered...).Bytes}, nil
	}
	return d.Outline(s, lowered)
}

// Launches is how one program runs in units.
type Launches struct {
	Launches int // of units, one after the other
	Compiled int // units that differ
}

// Share is a named part of a device's memory.
type Share struct {
	Name  string
	Bytes int64
}

// Capacity is the memory of a kind of device.
type Capacity struct {
	Device string // as it is sold: "H100 (80 GB)"
	Bytes  int64  // as it reports it, rounded down to GiB
}

// Usage is how a device's memory is used at a moment.
type Usage struct {
	Allocated int64 // by this backend
	Used      int64 // by everyone: other backends, libraries, other processes
	Total     int64 // that the device has
}

// Outside is what others have: on a device that nobody else works with, what the
// vendor's driver and libraries take for this process.
func (u Usage) Outside() int64 { return u.Used - u.Allocated }

// Counted is a Backend that can tell how its device's memory is used.
type Counted interface {
	Backend
	Usage() (Usage, error)
}

// Aligned rounds bytes up to a multiple of align.
func Aligned(bytes, align int64) int64 { return (bytes + align - 1) / align * align }

// Size writes bytes as vendors count memory: "80 GiB", "0.35 MiB".
func Size(bytes int64) string {
	number, unit := float64(bytes)/(1<<20), "MiB"
	if bytes >= 1<<30 {
		number, unit = number/(1<<10), "GiB"
	}
	return strings.TrimSuffix(fmt.Sprintf("%.2f", number), ".00") + " " + unit
}

// OutOfMemory is the ErrOutOfMemory of what was to be done. Asked is how many
// bytes that wanted and total what the device has, each 0 where it is not known;
// err is what the driver said.
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
