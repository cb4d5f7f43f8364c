package fp8

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"
)

// These benchmarks alternate short bursts of the compared functions and report each
// one's fastest burst, because a machine's speed drifts more in a minute than kernels
// differ.

// fastest runs the functions in turn, rounds times, and returns the shortest time of
// each in ns.
func fastest(b *testing.B, rounds int, list ...func()) []float64 {
	best := make([]float64, len(list))
	for b.Loop() {
		for i := range best {
			best[i] = math.Inf(1)
		}
		for range rounds {
			for i, f := range list {
				start := time.Now()
				f()
				best[i] = min(best[i], float64(time.Since(start)))
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	return best
}

// benchInput returns n values spread like a gradient, of both signs: eight binades
// below the largest element, and a tail below those.
func benchInput(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		r := randomWord(7, uint64(i))
		x[i] = float32(int32(r)) * float32(math.Exp2(-float64(randomWord(8, uint64(i))%20))) * 0x1p-23
	}
	return x
}

// castCase is one cast and the bytes it moves per element.
type castCase struct {
	name  string
	bytes int
	run   func(*castData)
}

type castData struct {
	f32 []float32
	u16 []uint16
	u8  []uint8
}

func newCastData(n int) *castData {
	return &castData{benchInput(n), make([]uint16, n), make([]uint8, n)}
}

// part returns the elements [from, to) without copying.
func (d *castData) part(from, to int) *castData {
	return &castData{d.f32[from:to], d.u16[from:to], d.u8[from:to]}
}

var castCases = []castCase{
	{"amax", 4, func(d *castData) { Amax(d.f32) }},
	{"f32 to e4m3", 5, func(d *castData) { Quantize8(d.u8, d.f32, E4M3, 3, false) }},
	{"f32 to e5m2", 5, func(d *castData) { Quantize8(d.u8, d.f32, E5M2, 3, false) }},
	{"f32 to e4m3 stochastic", 5, func(d *castData) { Quantize8Stochastic(d.u8, d.f32, E4M3, 3, 1, 2, false) }},
	{"f32 to f16", 6, func(d *castData) { Quantize16(d.u16, d.f32, 3) }},
	{"f16 to e4m3", 3, func(d *castData) { Requantize8(d.u8, d.u16, F16, E4M3, 2, 3, false) }},
	{"f16 to e4m3 stochastic", 3, func(d *castData) { Requantize8Stochastic(d.u8, d.u16, F16, E4M3, 2, 3, 1, 2, false) }},
	{"f32 to f16 stochastic", 6, func(d *castData) { Quantize16Stochastic(d.u16, d.f32, 3, 1, 2) }},
	{"f32 to bf16", 6, func(d *castData) { EncodeBF16(d.u16, d.f32) }},
	{"bf16 to e4m3", 3, func(d *castData) { Requantize8(d.u8, d.u16, BF16, E4M3, 1, 3, false) }},
	{"bf16 to e4m3 stochastic", 3, func(d *castData) { Requantize8Stochastic(d.u8, d.u16, BF16, E4M3, 1, 3, 1, 2, false) }},
	{"f32 to bf16 stochastic", 6, func(d *castData) { EncodeBF16Stochastic(d.u16, d.f32, 1, 2) }},
	{"bf16 to f32", 6, func(d *castData) { DecodeBF16(d.f32, d.u16) }},
	{"f16 to f32", 6, func(d *castData) { Dequantize16(d.f32, d.u16, 3) }},
	{"e4m3 to f32", 5, func(d *castData) { Dequantize8(d.f32, d.u8, E4M3, 3) }},
	{"e5m2 to f32", 5, func(d *castData) { Dequantize8(d.f32, d.u8, E5M2, 3) }},
}

// BenchmarkCastsInCache measures the kernels on data in the cache.
func BenchmarkCastsInCache(b *testing.B) {
	const n = 2048
	d := newCastData(n)
	for _, c := range castCases {
		b.Run(c.name, func(b *testing.B) {
			best := fastest(b, 400, func() {
				for range 10 {
					c.run(d)
				}
			})
			b.ReportMetric(10*n/best[0], "Gelem/s")
		})
	}
}

// BenchmarkCastsInMemory measures the casts where memory bandwidth is the limit. It
// reports their speed as a share of a copy that moves as many bytes.
func BenchmarkCastsInMemory(b *testing.B) {
	const n, piece = 1 << 26, 1 << 16
	d := newCastData(n)
	bytes := [2][]byte{make([]byte, 3*n), make([]byte, 3*n)}
	for i := range bytes[0] {
		bytes[0][i] = byte(i)
	}
	for _, c := range castCases {
		for threads := 1; threads <= 2; threads++ {
			b.Run(fmt.Sprintf("%s/threads=%d", c.name, threads), func(b *testing.B) {
				split := func(f func(from, to int)) func() {
					return func() {
						var wg sync.WaitGroup
						for t := range threads {
							wg.Go(func() {
								for at := t * piece; at < n; at += threads * piece {
									f(at, at+piece)
								}
							})
						}
						wg.Wait()
					}
				}
				best := fastest(b, 5, split(func(from, to int) { c.run(d.part(from, to)) }), split(func(from, to int) {
					copy(bytes[1][from*c.bytes/2:to*c.bytes/2], bytes[0][from*c.bytes/2:])
				}))
				b.ReportMetric(float64(n*c.bytes)/best[0], "GB/s")
				b.ReportMetric(float64(n*c.bytes)/best[1], "copy-GB/s")
				b.ReportMetric(best[1]/best[0], "of-copy")
			})
		}
	}
}

func BenchmarkNearest(b *testing.B) {
	src := benchInput(1 << 10)
	for b.Loop() {
		for _, x := range src {
			E4M3.Nearest(x, Saturate)
		}
	}
}

func BenchmarkStochastic(b *testing.B) {
	src := benchInput(1 << 10)
	for b.Loop() {
		for _, x := range src {
			E4M3.Stochastic(x, 1<<30, Saturate)
		}
	}
}
