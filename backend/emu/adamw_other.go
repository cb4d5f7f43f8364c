//go:build !amd64 || noasm

package emu

const haveAdamCodes = false

func adamAmaxAVX512(*adamCodes, *uint16, *uint8, *uint8, *float32, int, *[3][16]uint32) uint8 {
	return 0
}

func adamNearestAVX512(*adamCodes, *uint16, *uint8, *uint8, *float32, int) {}

func adamStochasticAVX512(*adamCodes, *uint16, *uint8, *uint8, *float32, int, uint32) {}

func adamExtentsAVX512(*uint16, *uint8, *uint8, int, *float32, *float32, *float32, *float32) {}
