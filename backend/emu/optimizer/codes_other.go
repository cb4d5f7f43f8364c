//go:build !amd64 || noasm

package optimizer

const haveAVX512, haveAVX2 = false, false

func amaxAVX512(*codes, *uint16, *uint8, *uint8, *float32, int, *[3][16]uint32) uint8 {
	return 0
}

func nearestAVX512(*codes, *uint16, *uint8, *uint8, *float32, int) {}

func stochasticAVX512(*codes, *uint16, *uint8, *uint8, *float32, int, uint32) {}

func extents([]uint16, []uint8, []uint8, int, []float32, []float32, []float32, []float32) {}

func floorBytes([]uint8, []float32) int { return 0 }
