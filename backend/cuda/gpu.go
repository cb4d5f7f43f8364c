//go:build cuda && cgo && linux

package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"octet/backend"
	"octet/csrc/libcuda"
	"octet/csrc/libcuda/kernels"
)

// gpu is the state that a process keeps for a GPU until it exits: the context, cuBLASLt
// and the loaded kernels.
type gpu struct {
	*libcuda.Device
	lt       *libcuda.Lt
	compiler *libcuda.Compiler

	mu        sync.Mutex
	modules   map[source]*libcuda.Module
	functions map[kernelID]*function

	trial func() error // compares the wgmma kernels of attention with those of mma.sync, once

	cache *algorithmCache // algorithms chosen for GEMMs; shared by all GPUs of a kind
}

type kernelID struct {
	source source
	name   string
}

type function struct {
	*libcuda.Function
	shared int // maximum bytes of dynamic shared memory, as set so far
}

// gpus are the opened GPUs, by ordinal.
var gpus = struct {
	sync.Mutex
	open map[int]*gpu
}{open: map[int]*gpu{}}

// kinds are the algorithm caches, by the kind of GPU: all that its algorithms depend on.
var kinds = struct {
	sync.Mutex
	known map[string]*algorithmCache
}{known: map[string]*algorithmCache{}}

func openGPU(ordinal int) (*gpu, error) {
	gpus.Lock()
	defer gpus.Unlock()
	if g := gpus.open[ordinal]; g != nil {
		return g, nil
	}
	if err := usable(ordinal); err != nil {
		return nil, err
	}
	d, err := libcuda.Open(ordinal)
	if err != nil {
		return nil, notOpened(ordinal, err)
	}
	g, err := newGPU(d)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	gpus.open[ordinal] = g
	return g, nil
}

// notOpened explains why the driver does not open a GPU that it lists.
func notOpened(ordinal int, err error) error {
	e := (*libcuda.Error)(nil)
	switch {
	case !errors.As(err, &e):
		return fmt.Errorf("open GPU %d: %w", ordinal, err)
	case e.OutOfMemory():
		return fmt.Errorf("open GPU %d: %w: %w; other processes use its memory (nvidia-smi lists them): end them, or choose another GPU, such as cuda:1", ordinal, backend.ErrOutOfMemory, err)
	}
	return fmt.Errorf("%w that can be used: open GPU %d: %w; %s", backend.ErrNoDevice, ordinal, err, cmp.Or(fixes[e.Code], "check nvidia-smi and dmesg"))
}

// newGPU starts cuBLASLt and NVRTC.
func newGPU(d *libcuda.Device) (*gpu, error) {
	g := &gpu{Device: d, modules: map[source]*libcuda.Module{}, functions: map[kernelID]*function{}}
	var err error
	if g.lt, err = g.NewLt(); err != nil {
		return nil, fmt.Errorf("start cuBLASLt: %w", err)
	}
	if g.compiler, err = libcuda.NewCompiler(g.Version); err != nil {
		return nil, errors.Join(fmt.Errorf("start NVRTC: %w", err), g.lt.Close())
	}
	g.trial = sync.OnceValue(g.tryWGMMA)
	kind := fmt.Sprintf("%s, %d multiprocessors, %s", g.Name, g.Processors, g.Arch())
	kinds.Lock()
	defer kinds.Unlock()
	if kinds.known[kind] == nil {
		kinds.known[kind] = newAlgorithmCache(g.lt.Version, kind)
	}
	g.cache = kinds.known[kind]
	return g, nil
}

// close frees what newGPU and function created on the device.
func (g *gpu) close() error {
	var errs []error
	for _, m := range g.modules {
		errs = append(errs, m.Close())
	}
	return errors.Join(append(errs, g.lt.Close(), g.Device.Close())...)
}

// compiling serializes compilation: a second GPU of the process finds the cubins of the
// first on disk.
var compiling sync.Mutex

// compile returns cubins of the sources that are not loaded yet, by source. NVRTC takes
// seconds for each; the cubins are cached on disk. It compiles several at a time, which
// NVRTC allows (its documentation, thread safety).
func (g *gpu) compile(sources ...source) (map[source][]byte, error) {
	g.mu.Lock()
	slices.SortFunc(sources, func(s, t source) int { return cmp.Or(cmp.Compare(s.name, t.name), cmp.Compare(s.text, t.text)) })
	sources = slices.DeleteFunc(slices.Compact(sources), func(s source) bool { return g.modules[s] != nil })
	g.mu.Unlock()
	cubins := make([][]byte, len(sources))
	var all errgroup.Group
	all.SetLimit(runtime.GOMAXPROCS(0))
	compiling.Lock()
	for i, source := range sources {
		all.Go(func() (err error) {
			cubins[i], err = g.cubin(source)
			return err
		})
	}
	err := all.Wait()
	compiling.Unlock()
	if err != nil {
		return nil, err
	}
	bySource := map[source][]byte{}
	for i, source := range sources {
		bySource[source] = cubins[i]
	}
	return bySource, nil
}

// load loads cubins onto the device, by source.
func (g *gpu) load(cubins map[source][]byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for source, cubin := range cubins {
		if g.modules[source] != nil { // another backend on this GPU loaded it meanwhile
			continue
		}
		m, err := g.LoadModule(cubin)
		if err != nil {
			return fmt.Errorf("load the kernels of %s: %w", source.name, err)
		}
		g.modules[source] = m
	}
	return nil
}

func (g *gpu) cubin(s source) ([]byte, error) {
	text := cmp.Or(s.text, kernels.Sources()[s.name])
	if text == "" {
		return nil, fmt.Errorf("package kernels has no source %s", s.name)
	}
	return g.compiler.Cubin(libcuda.Source{Name: s.name, Text: text, Headers: kernels.Headers()}, g.Arch(), kernels.Options()...)
}

// function returns the kernel of a launch, whose source has been loaded.
func (g *gpu) function(l *launch) (*libcuda.Function, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := kernelID{l.source, l.kernel}
	f := g.functions[id]
	if f == nil {
		f = &function{}
		var err error
		if f.Function, err = g.modules[l.source].Function(l.kernel); err != nil {
			return nil, err
		}
		g.functions[id] = f
	}
	if l.shared > f.shared { // kernels get 48 KiB without AllowShared, including their static shared memory
		if err := f.AllowShared(l.shared); err != nil {
			return nil, err
		}
		f.shared = l.shared
	}
	return f.Function, nil
}

// available returns why this binary cannot run on a GPU (default: the first).
func available(device string) error {
	opts, err := parse(device)
	if err != nil {
		return err
	}
	return usable(opts.gpu)
}

// installed returns the compute capability of a GPU, 90 for 9.0, and the version of the
// cuBLASLt that it would use, 1209 for 12.9; zeros if it cannot be used.
func installed(ordinal int) (capability, version int) {
	driver, err := libcuda.ProbeDriver()
	if err != nil || ordinal >= len(driver.GPUs) {
		return 0, 0
	}
	lib, err := libcuda.ProbeCublasLt(driver.Version)
	if err != nil {
		return 0, 0
	}
	return capabilityOf(driver.GPUs[ordinal]), versionOf(lib)
}

func capabilityOf(g libcuda.GPU) int { return 10*g.Major + g.Minor }

// versionOf returns 1209 for version 12.9.1 of a library, 0 if it is unknown.
func versionOf(lib libcuda.Library) int {
	var major, minor int
	if _, err := fmt.Sscanf(lib.Version, "%d.%d", &major, &minor); err != nil {
		return 0
	}
	return 100*major + minor
}

// usable returns why a GPU cannot be used, in one sentence. It allocates no device
// memory.
func usable(ordinal int) error {
	driver, err := libcuda.ProbeDriver()
	switch {
	case err != nil:
		return fmt.Errorf("%w: the CUDA driver does not start: %w; %s", backend.ErrNoDevice, err, fixOf(err))
	case ordinal >= len(driver.GPUs):
		return fmt.Errorf("%w: there is no GPU %d, CUDA shows %d to this process (CUDA_VISIBLE_DEVICES chooses them)", backend.ErrNoDevice, ordinal, len(driver.GPUs))
	}
	return fit(driver.Version, driver.GPUs[ordinal], fmt.Sprintf("GPU %d", ordinal))
}

// fit returns what a GPU or the libraries that it needs lack; version is the CUDA version
// that the driver supports.
func fit(version int, gpu libcuda.GPU, name string) error {
	if version < 12000 {
		return fmt.Errorf("%w that can be used: the driver supports CUDA %s, 12 or 13 is needed; %s", backend.ErrNoDevice, cudaVersion(version), fixDriver)
	}
	for _, f := range append([]backend.Finding{describe(name, gpu)}, libraries(version, gpu)...) {
		if !f.OK {
			return fmt.Errorf("%w that can be used: %s: %s; %s", backend.ErrNoDevice, f.What, f.Detail, f.Fix)
		}
	}
	return nil
}
