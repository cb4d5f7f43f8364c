package nn

// SetHeadElems sets headElems until restore is called.
func SetHeadElems(n int) (restore func()) {
	saved := headElems
	headElems = n
	return func() { headElems = saved }
}
