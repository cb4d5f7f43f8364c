//go:build !gaudi || !cgo || !linux

package gaudi

// RunWorker does nothing: this program was built without the backend.
func RunWorker() {}
