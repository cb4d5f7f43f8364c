package backend

// Share is a named part of a device's memory.
type Share struct {
	Name  string
	Bytes int64
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
