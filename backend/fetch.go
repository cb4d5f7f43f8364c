package backend

// Fetcher is a Backend whose device works on while what it has computed is on its
// way to the host. Where Run is done when it returns, there is nothing to gain.
type Fetcher interface {
	Backend
	// Fetch prepares to read persistent tensors again and again.
	Fetch(...*Tensor) (Fetch, error)
}

// Fetch reads tensors in two parts. What the device is given in between follows
// what is read, and may write the same tensors. It is for one goroutine, and ends
// with its backend.
type Fetch interface {
	// Begin asks for the tensors as they will be when the device has done what it
	// was given so far, and does not wait. What was asked for before and not read is
	// forgotten.
	Begin()
	// End waits for what Begin asked for, and not for what the device was given
	// since. It copies the tensors' bytes to dst, one behind the other. An error of
	// the device up to there, or of Begin, surfaces here.
	End(dst []byte) error
}
