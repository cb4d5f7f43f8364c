package emu

// ceilDiv returns n/size, rounded up.
func ceilDiv(n, size int) int { return (n + size - 1) / size }

// roundUp returns n, rounded up to a multiple of unit.
func roundUp(n, unit int) int { return ceilDiv(n, unit) * unit }

// balanced reports whether tasks of equal size keep the workers busy for at least seven
// eighths of the time.
func balanced(tasks, workers int) bool {
	return tasks*8 >= ceilDiv(tasks, workers)*workers*7
}
