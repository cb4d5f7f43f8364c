package backend

// Fetcher is a Backend that copies tensors to the host while its device computes. A
// Backend whose Run waits for the device has no use for it.
type Fetcher interface {
	Backend
	// Fetch prepares repeated reads of persistent tensors.
	Fetch(...*Tensor) (Fetch, error)
}

// Fetch reads tensors in two steps. Work that the device gets between Begin and End
// runs after the read, so it may write the same tensors. Only one goroutine may use a
// Fetch, and only until its backend is closed.
type Fetch interface {
	// Begin requests the tensors as they are after all work that the device got so
	// far, and does not wait. It drops an earlier request that was not read.
	Begin()
	// End waits for the request of Begin, but not for work that the device got since.
	// It copies the tensors' bytes to dst, one after the other. It returns errors of
	// Begin and of the device up to the request.
	End(dst []byte) error
}
