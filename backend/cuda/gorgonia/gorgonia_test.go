//go:build cuda && gorgonia && cgo && linux

package gorgonia

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"gorgonia.org/cu"

	"octet/backend"
	"octet/csrc/libcuda"
	"octet/data"
	"octet/fp8"
	"octet/train"
)

// program is a Gorgonia program: a non-primary context and a stream.
type program struct {
	*cu.Ctx
	device cu.Device
	stream cu.Stream
}

func gorgonia(t *testing.T) program {
	t.Helper()
	device, err := cu.GetDevice(0)
	require.NoError(t, err)
	ctx := cu.NewContext(device, cu.SchedAuto)
	t.Cleanup(func() { require.NoError(t, ctx.Close()) })
	stream, err := ctx.MakeStream(cu.NonBlocking)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx.DestroyStream(&stream)
		require.NoError(t, ctx.Error())
	})
	return program{ctx, device, stream}
}

func (p program) alloc(t *testing.T, bytes int) cu.DevicePtr {
	t.Helper()
	at, err := p.MemAlloc(int64(bytes))
	require.NoError(t, err)
	t.Cleanup(func() {
		p.MemFree(at)
		require.NoError(t, p.Error())
	})
	return at
}

// shared returns the same context and stream in Octet's binding.
func (p program) shared(t *testing.T) (*libcuda.Device, *libcuda.Stream) {
	t.Helper()
	d, err := Device(p)
	require.NoError(t, err)
	s := Stream(d, p.stream)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, d.Close())
	})
	return d, s
}

// write and read are Gorgonia's copies, ordered by the stream.
func (p program) write(t *testing.T, at cu.DevicePtr, b []byte) {
	t.Helper()
	p.MemcpyHtoDAsync(at, unsafe.Pointer(&b[0]), int64(len(b)), p.stream)
	require.NoError(t, p.Error())
	p.wait(t)
	runtime.KeepAlive(b)
}

func (p program) read(t *testing.T, at cu.DevicePtr, bytes int) []byte {
	t.Helper()
	b := make([]byte, bytes)
	p.MemcpyDtoHAsync(unsafe.Pointer(&b[0]), at, int64(bytes), p.stream)
	require.NoError(t, p.Error())
	p.wait(t)
	return b
}

func (p program) wait(t *testing.T) {
	t.Helper()
	p.SynchronizeStream(p.stream)
	require.NoError(t, p.Error())
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*i + 7*i + 3)
	}
	return b
}

// Both bindings report the same devices.
func TestBindingsAgreeOnDevices(t *testing.T) {
	driver, err := libcuda.ProbeDriver()
	require.NoError(t, err)
	require.Equal(t, cu.Version(), driver.Version)
	count, err := cu.NumDevices()
	require.NoError(t, err)
	require.Len(t, driver.GPUs, count)
	for i, got := range driver.GPUs {
		d, err := cu.GetDevice(i)
		require.NoError(t, err)
		want := libcuda.GPU{}
		want.Name, err = d.Name()
		require.NoError(t, err)
		memory, err := d.TotalMem()
		require.NoError(t, err)
		want.Memory = uint64(memory)
		var domain, bus, slot int
		for attribute, to := range map[cu.DeviceAttribute]*int{
			cu.PciDomainID: &domain, cu.PciBusID: &bus, cu.PciDeviceID: &slot,
			cu.ComputeCapabilityMajor: &want.Major, cu.ComputeCapabilityMinor: &want.Minor,
			cu.MultiprocessorCount: &want.Processors,
			97:                     &want.Shared, // CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, which cu does not name
		} {
			*to, err = d.Attribute(attribute)
			require.NoError(t, err)
		}
		got.Bus = strings.ToLower(got.Bus) // drivers may write 0A or 0a
		want.Bus = fmt.Sprintf("%04x:%02x:%02x.0", domain, bus, slot)
		require.Equal(t, want, got)
	}
}

func TestDevice(t *testing.T) {
	p := gorgonia(t)
	d, _ := p.shared(t)
	name, err := p.device.Name()
	require.NoError(t, err)
	require.Equal(t, name, d.Name)

	// Memory that one binding allocates is missing in the other's free memory.
	before, total, err := d.Memory()
	require.NoError(t, err)
	free, all, err := p.MemInfo()
	require.NoError(t, err)
	require.Equal(t, total, uint64(all))
	require.InDelta(t, before, free, 16<<20, "the driver may allocate some in between")
	p.alloc(t, 256<<20)
	after, _, err := d.Memory()
	require.NoError(t, err)
	require.GreaterOrEqual(t, before-after, uint64(256<<20))

	_, err = Device(&cu.Ctx{})
	require.ErrorContains(t, err, "it is null")
}

// Either binding can use memory that the other allocated, and a stream orders the work of
// both.
func TestBindingsShareMemory(t *testing.T) {
	const n = 100_000
	p := gorgonia(t)
	d, s := p.shared(t)
	want := pattern(n)

	theirs := p.alloc(t, n)
	require.NoError(t, s.Upload(libcuda.Ptr(theirs), want))
	require.Equal(t, want, p.read(t, theirs, n), "ours to theirs")

	ours, err := d.Alloc(n)
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Free(ours)) }()
	p.write(t, cu.DevicePtr(ours), want)
	got := make([]byte, n)
	require.NoError(t, s.Download(got, ours))
	require.Equal(t, want, got, "theirs to ours")

	size, base, err := rangeOf(p, cu.DevicePtr(ours)+1000)
	require.NoError(t, err)
	require.Equal(t, cu.DevicePtr(ours), base)
	require.Equal(t, int64(n), size)

	// The stream orders the copies of both bindings without synchronization.
	require.NoError(t, s.Fill(ours, 1, n))
	p.MemcpyDtoDAsync(theirs, cu.DevicePtr(ours), n, p.stream)
	require.NoError(t, p.Error())
	require.NoError(t, s.Fill(ours, 2, n))
	got = p.read(t, theirs, n)
	require.Equal(t, byte(1), got[0])
	require.Equal(t, byte(1), got[n-1])
}

func rangeOf(p program, at cu.DevicePtr) (size int64, base cu.DevicePtr, err error) {
	err = p.Do(func() error {
		size, base, err = at.AddressRange()
		return err
	})
	return size, base, err
}

// On one stream, a nested interval is not longer than the outer one, across bindings.
func TestBindingsAgreeOnTime(t *testing.T) {
	p := gorgonia(t)
	d, s := p.shared(t)
	at := p.alloc(t, 64<<20)
	var ours [2]*libcuda.Event
	var theirs [4]cu.Event
	for i := range ours {
		e, err := d.NewEvent()
		require.NoError(t, err)
		defer func() { require.NoError(t, e.Close()) }()
		ours[i] = e
	}
	for i := range theirs {
		e, err := p.MakeEvent(cu.DefaultEvent)
		require.NoError(t, err)
		defer func() {
			p.DestroyEvent(&e)
			require.NoError(t, p.Error())
		}()
		theirs[i] = e
	}
	record := func(e cu.Event) {
		p.Record(e, p.stream)
		require.NoError(t, p.Error())
	}
	work := func() { require.NoError(t, s.Fill(libcuda.Ptr(at), 1, 64<<20)) }
	record(theirs[0])
	work()
	require.NoError(t, s.Record(ours[0]))
	work()
	record(theirs[1])
	work()
	record(theirs[2])
	work()
	require.NoError(t, s.Record(ours[1]))
	work()
	record(theirs[3])
	p.wait(t)

	elapsed := func(from, to int) time.Duration {
		ms, err := p.Elapsed(theirs[from], theirs[to])
		require.NoError(t, err)
		return time.Duration(ms * float64(time.Millisecond))
	}
	middle, err := ours[1].Since(ours[0])
	require.NoError(t, err)
	require.LessOrEqual(t, elapsed(1, 2), middle)
	require.LessOrEqual(t, middle, elapsed(0, 3))
}

// An FP8 layer runs in Gorgonia's context: input and output are Gorgonia's memory, and
// the result equals, bit for bit, that of a separate backend.
func TestOpen(t *testing.T) {
	const rows, k, cols = 32, 64, 48
	p := gorgonia(t)
	x, y := p.alloc(t, 4*rows*k), p.alloc(t, 4*rows*cols+4096)
	mine, err := Open(p, p.stream, map[string]cu.DevicePtr{"x": x, "y": y + 4096})
	require.NoError(t, err)
	defer func() { require.NoError(t, mine.Close()) }()
	input := func(seed int) []byte {
		f := make([]float32, rows*k)
		for i := range f {
			f[i] = float32((i*37+seed)%101-50) / 16
		}
		return fp8.AppendFloats(nil, f...)
	}

	mineRun, _, _ := layer(t, mine, rows, k, cols)
	// Opened later, it reuses the cached choice of cuBLASLt's algorithms.
	other, err := backend.Open("cuda", backend.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close()) }()
	otherRun, otherX, otherY := layer(t, other, rows, k, cols)
	want := make([]byte, 4*rows*cols)
	for seed := range 3 {
		p.write(t, x, input(seed))
		require.NoError(t, mineRun.Run(t.Context()))
		got := p.read(t, y+4096, len(want))

		require.NoError(t, other.Write(otherX, input(seed)))
		require.NoError(t, otherRun.Run(t.Context()))
		require.NoError(t, other.Read(otherY, want))
		require.Equal(t, want, got)
		require.NotEqual(t, make([]byte, len(want)), got)
	}
}

// A training run in Gorgonia's context, with its embeddings in Gorgonia's memory, equals
// that of a separate backend.
func TestTrain(t *testing.T) {
	c := train.Default()
	c.Recipe = "fp8-delayed"
	c.Model.Layers, c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN = 1, 32, 2, 1, 48
	c.Data.Seq, c.Train.MicroBatch, c.Train.Accumulate, c.Train.HealthEvery = 16, 3, 1, 0
	const name = "model.embed_tokens.weight"
	steps := func(b backend.Backend) (losses []float64, embeddings []byte) {
		j, err := train.NewJob(c, b.Spec())
		require.NoError(t, err)
		text := data.Text(strings.Repeat("to be or not to be, ", 200))
		tr, err := train.NewTrainer(j, &data.Corpus{Train: text}, b, nil)
		require.NoError(t, err)
		require.NoError(t, tr.Init(t.Context()))
		for range 3 {
			r, err := tr.Next(t.Context())
			require.NoError(t, err)
			losses = append(losses, r.Loss)
		}
		table := j.Vars.Lookup(name)
		embeddings = make([]byte, table.Bytes())
		require.NoError(t, b.Read(table, embeddings))
		return losses, embeddings
	}

	p := gorgonia(t)
	at := p.alloc(t, 1<<20)
	mine, err := Open(p, p.stream, map[string]cu.DevicePtr{name: at})
	require.NoError(t, err)
	defer func() { require.NoError(t, mine.Close()) }()
	got, _ := steps(mine)
	other, err := backend.Open("cuda", backend.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close()) }()
	want, embeddings := steps(other)
	require.Equal(t, want, got)
	require.Equal(t, embeddings, p.read(t, at, len(embeddings)))
}

// layer loads y = cast(x)·cast(w)ᵀ in E4M3, with fixed weights.
func layer(t *testing.T, b backend.Backend, rows, k, cols int) (run backend.Executable, x, y *backend.Tensor) {
	t.Helper()
	v := backend.NewVars()
	x = v.Tensor(backend.Input, "x", fp8.F32, rows, k)
	w := v.Tensor(backend.Param, "w", fp8.F32, cols, k)
	y = v.Tensor(backend.Output, "y", fp8.F32, rows, cols)
	one := v.Tensor(backend.State, "one", fp8.F32, 1)
	pr := v.Program("layer")
	codes := func(name string, of *backend.Tensor) *backend.Tensor {
		c := pr.Temp(name, fp8.E4M3, of.Rows(), of.Cols())
		c.Scale = one
		pr.Add(&backend.Quantize{X: of, Out: []backend.Cast{{Out: c}}})
		return c
	}
	pr.Add(&backend.MatMul{A: codes("x.codes", x), B: codes("w.codes", w), TransB: true, Out: y})
	require.NoError(t, pr.Err())
	loaded, err := backend.Load(b, pr)
	require.NoError(t, err)
	weights := make([]float32, cols*k)
	for i := range weights {
		weights[i] = float32(i%29-14) / 8
	}
	require.NoError(t, b.Write(w, fp8.AppendFloats(nil, weights...)))
	require.NoError(t, b.Write(one, fp8.AppendFloats(nil, 1)))
	return loaded[0], x, y
}

func TestOpenRefuses(t *testing.T) {
	p := gorgonia(t)
	_, err := Open(p, cu.NoStream, nil)
	require.ErrorContains(t, err, "MakeStream(cu.NonBlocking)")
	_, err = Open(p, p.stream, map[string]cu.DevicePtr{"x": 4096})
	require.ErrorContains(t, err, "the external memory of x, 0x1000")

	at := p.alloc(t, 4096)
	b, err := Open(p, p.stream, map[string]cu.DevicePtr{"x": at + 2048})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	v := backend.NewVars()
	v.Tensor(backend.Input, "x", fp8.F32, 1024)
	_, err = b.Load(v.Program("none"))
	require.EqualError(t, err, "cuda: the external memory of x:fp32[1024] has 2048 bytes, the variable needs 4096")
}
