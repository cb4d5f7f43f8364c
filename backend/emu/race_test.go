//go:build race

package emu

// raceEnabled is set where the detector's own allocations hide the kernels'.
const raceEnabled = true
