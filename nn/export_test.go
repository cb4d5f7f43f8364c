package nn

// SetHeadElems bounds the logits that exist at a time until restore is called.
func SetHeadElems(n int) (restore func()) {
	usual := headElems
	headElems = n
	return func() { headElems = usual }
}
