package pool

// CeilDiv returns n/size, rounded up.
func CeilDiv(n, size int) int { return (n + size - 1) / size }

// RoundUp returns n, rounded up to a multiple of unit.
func RoundUp(n, unit int) int { return CeilDiv(n, unit) * unit }

// Balanced reports whether tasks of equal size keep the workers busy for at least seven
// eighths of the time.
func Balanced(tasks, workers int) bool {
	return tasks*8 >= CeilDiv(tasks, workers)*workers*7
}
