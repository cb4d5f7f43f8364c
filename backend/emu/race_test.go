//go:build race

package emu

// raceEnabled says that the race detector is on, whose allocations hide the kernels'.
const raceEnabled = true
