//go:build cuda && cgo && linux

package cuda

import (
	"errors"
	"fmt"
	"maps"
	"sync"

	"octet/backend"
	"octet/csrc/libcuda"
)

// device is a backend: the memory of one set of variables on a GPU, and the stream of its
// work.
type device struct {
	*gpu
	spec   backend.Spec
	stream *libcuda.Stream

	overlaps   bool            // collectives of several ranks run beside other nodes
	commStream *libcuda.Stream // of collectives; nil: they run on stream

	vars      backend.DeviceVars
	addresses map[*backend.Tensor]libcuda.Ptr // of the variables
	external  map[string]Region               // memory of variables that other code owns, by name
	adopted   bool                            // context and stream are external too

	staging staging
	fetches []*fetch

	blocks      []libcuda.Ptr // of variables and loaded programs
	executables []*executable

	allocated int64 // bytes of device memory

	mma    bool // attention by mma.sync: requested, or the trial of wgmma failed
	trying bool // this device runs the trial

	earlier, chosen choices // algorithms of GEMMs: of the resumed run, and of this one

	*member               // nil for a single rank
	connecting bool       // the group ended during ncclCommInitRank, which may still use the GPU
	recording  sync.Mutex // held while streams are captured
	marks      []string   // names of collectives, see binder
}

// openRank opens the GPU of a rank, and connects it to those of the other ranks.
func openRank(opts options, o backend.Options) (backend.Backend, error) {
	place := o.Group.Place()
	ordinal := opts.gpu + place.LocalRank
	if driver, err := libcuda.ProbeDriver(); err == nil && opts.gpu < len(driver.GPUs) && ordinal >= len(driver.GPUs) {
		return nil, fmt.Errorf("%w: rank %d needs GPU %d, CUDA shows %d to this process (CUDA_VISIBLE_DEVICES chooses them): start %d ranks on this machine, or use --backend emu",
			backend.ErrUnsupported, place.Rank, ordinal, len(driver.GPUs), len(driver.GPUs)-opts.gpu)
	}
	d, err := openDevice(ordinal, opts, o.Choices)
	if err != nil {
		return nil, err
	}
	if o.Group != nil {
		if err := d.join(o.Group); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

func openDevice(ordinal int, opts options, earlier []byte) (*device, error) {
	g, err := openGPU(ordinal)
	if err != nil {
		return nil, err
	}
	if has := capabilityOf(g.GPU); opts.capability > 0 && has != opts.capability {
		return nil, fmt.Errorf("%w: GPU %d has compute capability %d.%d, not that of sm_%d: name it cuda:%[2]d", backend.ErrNoDevice, ordinal, has/10, has%10, opts.capability)
	}
	s, err := g.NewStream()
	if err != nil {
		return nil, (&device{gpu: g}).failure("open a stream", 0, err)
	}
	return (&device{gpu: g, stream: s, mma: opts.mma, overlaps: opts.overlaps, earlier: parseChoices(earlier, g.lt.Version)}).start()
}

// start completes a device whose GPU and stream are set.
func (d *device) start() (_ *device, err error) {
	d.chosen = noChoices(d.lt.Version)
	d.spec = specOf(capabilityOf(d.GPU), versionOf(d.lt.Library))
	d.spec.Device = fmt.Sprintf("%s, compute capability %d.%d", d.Name, d.Major, d.Minor)
	d.spec.Arithmetic = d.arithmetic()
	if err := d.stage(); err != nil {
		return nil, errors.Join(d.failure("lock host memory", 0, err), d.Close())
	}
	return d, nil
}

func (d *device) Spec() backend.Spec { return d.spec }

// wgmma reports whether attention uses the wgmma kernels, which only Hopper has.
func (d *device) wgmma() bool { return d.Major == 9 && d.Minor == 0 && !d.mma }

// arithmetic names everything that the last bits of results depend on.
func (d *device) arithmetic() string {
	text := fmt.Sprintf("%s+cublaslt%s+nvrtc%s", d.Arch(), d.lt.Version, d.compiler.Version)
	if d.mma {
		text += "+attention-mma"
	}
	if d.member != nil {
		text += "+nccl" + d.comms[0].Version
	}
	if mark := d.chosen.fingerprint(); mark != "" {
		text += "+algorithms-" + mark
	}
	return text
}

// Choices returns the algorithms of the loaded programs, and those that this backend was
// opened with: a later program may need them.
func (d *device) Choices() []byte {
	all := noChoices(d.lt.Version)
	maps.Copy(all.Algorithms, d.earlier.Algorithms)
	maps.Copy(all.Algorithms, d.chosen.Algorithms)
	return all.text()
}

// ranks returns the number of ranks.
func (d *device) ranks() int {
	if d.member == nil {
		return 1
	}
	return d.group.Size()
}

// allocVars allocates one zeroed block for variables, except for those in external memory.
func (d *device) allocVars(fresh []*backend.Tensor) (err error) {
	if d.addresses == nil {
		if d.addresses, err = place(d.vars.Vars, d.external); err != nil {
			return err
		}
	}
	offsets, bytes := map[*backend.Tensor]int64{}, int64(0)
	for _, t := range fresh {
		if _, ok := d.addresses[t]; !ok {
			offsets[t] = bytes
			bytes += backend.Aligned(t.Bytes(), align)
		}
	}
	at, err := d.alloc("the variables", bytes)
	if err != nil {
		return err
	}
	d.blocks = append(d.blocks, at)
	if err := d.stream.Fill(at, 0, int(bytes)); err != nil {
		return d.failure("clear the variables", bytes, err)
	}
	for t, offset := range offsets {
		d.addresses[t] = at + libcuda.Ptr(offset)
	}
	return nil
}

// alloc allocates device memory, at least align bytes; Close frees it.
func (d *device) alloc(what string, bytes int64) (libcuda.Ptr, error) {
	bytes = max(bytes, align)
	at, err := d.gpu.Alloc(int(bytes))
	if err != nil {
		return 0, d.failure("allocate "+what, bytes, err)
	}
	d.allocated += bytes
	return at, nil
}

// Usage returns what the driver reports.
func (d *device) Usage() (backend.Usage, error) {
	free, total, err := d.gpu.Memory()
	if err != nil {
		return backend.Usage{}, d.failure("query memory usage", 0, err)
	}
	return backend.Usage{Allocated: d.allocated, Used: int64(total - free), Total: int64(total)}, nil
}

// contiguous returns the address of a persistent tensor or view of n bytes.
func (d *device) contiguous(t *backend.Tensor, n int) (libcuda.Ptr, error) {
	if err := d.vars.CheckCopy(t, n); err != nil {
		return 0, err
	}
	return d.addresses[t.Root()] + libcuda.Ptr(t.DType.Bytes(t.Offset)), nil
}

// Close frees this backend's memory. The GPU stays open for other backends, unless it was
// adopted. On a lost device, errors of freeing are ignored.
func (d *device) Close() error {
	if !d.vars.Close() || d.connecting {
		return nil
	}
	m := d.member
	if m == nil {
		return d.free()
	}
	m.stop()
	err := d.free()
	m.close()
	return err
}

// free frees what this backend allocated.
func (d *device) free() error {
	var errs []error
	note := func(err error) {
		if e := (*libcuda.Error)(nil); err != nil && !(errors.As(err, &e) && e.DeviceLost()) {
			errs = append(errs, err)
		}
	}
	note(d.stream.Synchronize()) // the device may still use what is freed
	if d.commStream != nil {     // after an error its work is not part of the other stream's
		note(d.commStream.Synchronize())
	}
	for _, x := range d.executables {
		note(x.close())
	}
	for _, at := range d.blocks {
		note(d.gpu.Free(at))
	}
	for _, f := range d.fetches {
		note(f.close())
	}
	note(d.staging.close())
	note(d.stream.Close())
	if d.commStream != nil {
		note(d.commStream.Close())
	}
	if d.adopted {
		note(d.gpu.close())
	}
	*d = device{gpu: d.gpu, spec: d.spec, vars: d.vars}
	return errors.Join(errs...)
}

// failure explains an error of the device: the action, and its bytes if they matter.
func (d *device) failure(what string, bytes int64, err error) error {
	who := "cuda"
	if d.member != nil {
		who = fmt.Sprintf("cuda: rank %d", d.group.Rank())
	}
	var e *libcuda.Error
	switch {
	case !errors.As(err, &e):
		return fmt.Errorf("%s: %s: %w", who, what, err)
	case e.OutOfMemory():
		free, total, _ := d.gpu.Memory() // 0: unknown
		return backend.OutOfMemory(who+": "+what, bytes, int64(free), int64(total), e)
	case e.DeviceLost():
		return fmt.Errorf("%s: %s: %w: %w; only a new process gets the GPU back, start again", who, what, backend.ErrDeviceLost, err)
	}
	return fmt.Errorf("%s: %s: %w", who, what, err)
}
