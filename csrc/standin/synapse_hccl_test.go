//go:build gaudi && cgo && linux

package standin

import (
	"encoding/binary"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	hcclSuccess, hcclNoDevice, hcclUnsupported, hcclInvalidArgument, hcclInvalidUsage, hcclSocket, hcclTerminated = 0, 1, 2, 7, 8, 9, 15

	hcclI8, hcclI32, hcclF32, hcclBF16 = 0, 2, 7, 9

	sumOp, prodOp, maxOp, avgOp = 0, 1, 3, 4

	failHCCL = 40
)

// A rank has its own copy of the library, and so its own machine.
type rank struct {
	*synapse
	index int
	comm  uint64
}

// ranks calls f for n concurrent ranks with a communicator.
func ranks(t *testing.T, n int, f func(r *rank)) {
	var all []*rank
	for i := range n {
		all = append(all, &rank{synapse: open(t, gaudi2), index: i})
	}
	id, p := all[0].memory(1032)
	require.Zero(t, all[0].Call("hcclGetUniqueId", p))
	require.NotZero(t, id[0])
	var wg sync.WaitGroup
	for _, r := range all {
		wg.Go(func() {
			b, out := r.memory(8)
			if !assertZero(t, r.CallWithID("hcclCommInitRank", out, uint64(n), p, uint64(r.index)), "hcclCommInitRank") {
				return
			}
			r.comm = binary.LittleEndian.Uint64(b)
			f(r)
		})
	}
	wg.Wait()
}

// assertZero is for goroutines, which must not call FailNow.
func assertZero(t testing.TB, got int, what string) bool {
	if got != 0 {
		t.Errorf("%s returned %d", what, got)
	}
	return got == 0
}

func (r *rank) floats(values ...float32) uint64 {
	p := r.malloc(4 * len(values))
	r.write(p, f32Bytes(values))
	return p
}

func (r *rank) readFloats(p uint64, n int) []float32 { return floatsFrom(r.read(p, 4*n), typeF32) }

func TestAllReduce(t *testing.T) {
	ranks(t, 3, func(r *rank) {
		x := float32(r.index)
		from, to := r.floats(1+x, -x, 0x1p-24), r.malloc(12)
		for _, c := range []struct {
			op   uint64
			want []float32
		}{
			{sumOp, []float32{6, -3, 3 * 0x1p-24}},
			{maxOp, []float32{3, 0, 0x1p-24}},
		} {
			assertZero(r.t, r.Call("hcclAllReduce", from, to, 3, hcclF32, c.op, r.comm, r.stream), "hcclAllReduce")
			got := r.readFloats(to, 3)
			for i := range got {
				if got[i] != c.want[i] {
					t.Errorf("rank %d op %d: %v, want %v", r.index, c.op, got, c.want)
				}
			}
		}
	})
}

// Sums are in ascending order of ranks: 2^24 + 1 + 1 differs in another order.
func TestSumsAreInRankOrder(t *testing.T) {
	ranks(t, 3, func(r *rank) {
		p := r.floats([]float32{0x1p24, 1, 1}[r.index])
		assertZero(t, r.Call("hcclAllReduce", p, p, 1, hcclF32, sumOp, r.comm, r.stream), "in place")
		if got := r.readFloats(p, 1)[0]; got != 0x1p24 {
			t.Errorf("%v", got)
		}
	})
}

func TestReduceOtherTypes(t *testing.T) {
	ranks(t, 2, func(r *rank) {
		p := r.malloc(8)
		r.write(p, i32Bytes(1<<24+1, -5-int32(r.index)))
		assertZero(t, r.Call("hcclAllReduce", p, p, 2, hcclI32, sumOp, r.comm, r.stream), "i32")
		if got := r.read(p, 8); string(got) != string(i32Bytes(1<<25+2, -11)) {
			t.Errorf("%v", got)
		}
		r.write(p, bf16Bytes([]float32{1, 0x1p-8, 256, 1}))
		assertZero(t, r.Call("hcclAllReduce", p, p, 4, hcclBF16, sumOp, r.comm, r.stream), "bf16")
		if got := r.read(p, 8); string(got) != string(bf16Bytes([]float32{2, 0x1p-7, 512, 2})) {
			t.Errorf("%v", got)
		}
	})
}

func TestGatherScatterBroadcast(t *testing.T) {
	ranks(t, 3, func(r *rank) {
		x := float32(r.index)
		all := r.malloc(24)
		assertZero(t, r.Call("hcclAllGather", r.floats(x, 10*x), all, 2, hcclF32, r.comm, r.stream), "all-gather")
		expectFloats(t, r.readFloats(all, 6), 0, 0, 1, 10, 2, 20)
		part := r.malloc(8)
		assertZero(t, r.Call("hcclReduceScatter", all, part, 2, hcclF32, sumOp, r.comm, r.stream), "reduce-scatter")
		expectFloats(t, r.readFloats(part, 2), 3*x, 30*x)
		assertZero(t, r.Call("hcclReduceScatter", all, all+uint64(8*r.index), 2, hcclF32, sumOp, r.comm, r.stream), "in place")
		expectFloats(t, r.readFloats(all+uint64(8*r.index), 2), 3*x, 30*x)
		parts, factor := r.malloc(12), []float32{1, 10, 100}[r.index]
		assertZero(t, r.Call("hcclAlltoAll", r.floats(x, 10*x, 100*x), parts, 3, hcclF32, r.comm, r.stream), "all-to-all")
		expectFloats(t, r.readFloats(parts, 3), 0, factor, 2*factor)
		if r.Call("hcclAlltoAll", all, parts, 2, hcclF32, r.comm, r.stream) == 0 {
			t.Error("two elements are not three equal parts")
		}
		b := r.floats(x)
		assertZero(t, r.Call("hcclBroadcast", b, b, 1, hcclF32, 2, r.comm, r.stream), "broadcast")
		expectFloats(t, r.readFloats(b, 1), 2)
	})
}

func expectFloats(t *testing.T, got []float32, want ...float32) {
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %v, want %v", got, want)
			return
		}
	}
}

// A message can be larger than a socket's buffer.
func TestLargeBroadcast(t *testing.T) {
	const n = 1 << 20
	ranks(t, 2, func(r *rank) {
		values := make([]float32, n)
		for i := range values {
			values[i] = float32(i*2 + r.index)
		}
		p := r.floats(values...)
		assertZero(t, r.Call("hcclBroadcast", p, p, n, hcclF32, 0, r.comm, r.stream), "broadcast")
		got := r.readFloats(p, n)
		expectFloats(t, []float32{got[0], got[n-1]}, 0, 2*(n-1))
	})
}

func TestOneRank(t *testing.T) {
	ranks(t, 1, func(r *rank) {
		p := r.floats(3)
		assertZero(t, r.Call("hcclAllReduce", p, p, 1, hcclF32, sumOp, r.comm, r.stream), "all-reduce")
		expectFloats(t, r.readFloats(p, 1), 3)
	})
}

// A collective runs only when a call waits for its stream.
func TestCollectivesAreDeferred(t *testing.T) {
	ranks(t, 1, func(r *rank) {
		p, q := r.floats(1), r.malloc(4)
		assertZero(t, r.Call("hcclAllReduce", p, q, 1, hcclF32, sumOp, r.comm, r.stream), "all-reduce")
		other := r.get("synStreamCreateGeneric", 0, 0)
		b, at := r.host(4)
		r.do("synMemCopyAsync", other, q, 4, at, deviceToHost)
		r.do("synStreamSynchronize", other)
		if binary.LittleEndian.Uint32(b) != 0xffffffff {
			t.Error("the all-reduce ran without a wait for its stream")
		}
	})
}

func TestHCCLRules(t *testing.T) {
	ranks(t, 1, func(r *rank) {
		p, q := r.floats(1, 2, 3, 4), r.malloc(16)
		reduce := func(from, to, n, typ, op uint64) int {
			return r.Call("hcclAllReduce", from, to, n, typ, op, r.comm, r.stream)
		}
		for _, c := range []struct{ got, want int }{
			{reduce(p, q, 4, hcclF32, avgOp), hcclUnsupported},
			{reduce(p, q, 4, hcclF32, prodOp), hcclUnsupported},
			{reduce(p, q, 4, hcclI8, sumOp), hcclUnsupported},
			{reduce(p, q, 5, hcclF32, sumOp), hcclInvalidArgument},
			{reduce(p, 4096, 4, hcclF32, sumOp), hcclInvalidArgument},
			{reduce(p, p+4, 3, hcclF32, sumOp), hcclInvalidArgument},
			{r.Call("hcclAllReduce", p, q, 4, hcclF32, sumOp, 77, r.stream), hcclInvalidArgument},
			{r.Call("hcclAllReduce", p, q, 4, hcclF32, sumOp, r.comm, 77), hcclInvalidArgument},
			{r.Call("hcclBroadcast", p, p, 4, hcclF32, 1, r.comm, r.stream), hcclInvalidArgument},
			{r.Call("synDeviceRelease", 0), busy}, // with a communicator
			{r.Call("hcclCommInitRank", 0, 0, 0, 0), hcclNoDevice},
		} {
			if c.got != c.want {
				t.Errorf("result %d, want %d", c.got, c.want)
			}
		}
	})
}

// Other ranks fail if a rank ends or runs another collective.
func TestRankThatEnds(t *testing.T) {
	ranks(t, 2, func(r *rank) {
		if r.index == 1 {
			assertZero(t, r.Call("hcclCommDestroy", r.comm), "destroy")
			return
		}
		p := r.floats(1)
		assertZero(t, r.Call("hcclAllReduce", p, p, 1, hcclF32, sumOp, r.comm, r.stream), "all-reduce")
		if got := r.Call("synStreamSynchronize", r.stream); got != failHCCL {
			t.Errorf("%d", got)
		}
		if got := r.Call("hcclCommDestroy", r.comm); got != hcclTerminated {
			t.Errorf("%d", got)
		}
	})
}

func TestRanksThatDisagree(t *testing.T) {
	ranks(t, 2, func(r *rank) {
		p := r.floats(1, 2)
		assertZero(t, r.Call("hcclAllReduce", p, p, uint64(1+r.index), hcclF32, sumOp, r.comm, r.stream), "all-reduce")
		if got := r.Call("synStreamSynchronize", r.stream); got != failHCCL {
			t.Errorf("%d", got)
		}
	})
}

func TestMissingRank(t *testing.T) {
	t.Setenv("STANDIN_HCCL_SECONDS", "1")
	s := open(t, gaudi2)
	_, id := s.memory(1032)
	s.do("hcclGetUniqueId", id)
	_, out := s.memory(8)
	require.Equal(t, hcclSocket, s.CallWithID("hcclCommInitRank", out, 2, id, 1))
}
