package gaudi

import (
	"context"
	"errors"
	"fmt"

	"octet/backend"
	"octet/backend/world"
	"octet/csrc/libsynapse"
)

// device is a backend on one Gaudi, with one set of variables.
type device struct {
	synapse
	spec  backend.Spec
	group *world.Group
	lost  bool // by the process: no further calls

	allocated int64 // bytes of device memory
	vars      backend.DeviceVars
	addresses map[*backend.Tensor]libsynapse.Ptr // of the variables
	layouts   layouts                            // of the variables
	loaded    []*backend.Program

	blocks []libsynapse.Ptr // all allocated device memory
	lists  []int            // all prepared command lists
}

// newDevice returns the backend of a group's rank, with the device options opts.
func newDevice(s synapse, g *world.Group, opts deviceOptions) (*device, error) {
	h := s.hardware()
	if _, ok := models[h.Model]; !ok {
		return nil, fmt.Errorf("%w that can be used: the device is a %s, and only Gaudi 2 and 3 compute in FP8", backend.ErrNoDevice, h.Name)
	}
	model, err := opts.spec(h.Model)
	if err != nil {
		return nil, err
	}
	model.Device = fmt.Sprintf("%s, %s, SynapseAI %s", model.Device, h.Name, h.Driver)
	model.Arithmetic = fmt.Sprintf("%s+synapse%s", h.Model, h.Driver)
	if opts.unit > 1 { // the compiler fuses across blocks, which may change the rounding
		model.Arithmetic += fmt.Sprintf("+unit%d", opts.unit)
	}
	known := own(model)
	known.align = h.Align
	model.Own = known
	return &device{
		synapse: s, spec: model, group: g,
		addresses: map[*backend.Tensor]libsynapse.Ptr{}, layouts: layouts{},
	}, nil
}

// join connects the device to those of the other ranks.
func (d *device) join() error {
	if d.group == nil {
		return nil
	}
	if err := d.synapse.join(d.group); err != nil {
		return err
	}
	return d.group.Compare(context.Background(), world.Identity{{Name: "device and its libraries", Value: d.spec.Arithmetic}})
}

// ended returns why the group ended; nil while it works.
func (d *device) ended() error {
	if err := d.group.Err(); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrDeviceLost, err)
	}
	return nil
}

// abort ends all ranks, because this rank skips a collective that the other ranks may wait for.
func (d *device) abort(why error) { d.group.Fail(world.CodeFailed, why) }

func (d *device) Spec() backend.Spec { return d.spec }

// allocVars allocates one zeroed block for variables, in the layouts that programs need.
func (d *device) allocVars(fresh []*backend.Tensor, wanted layouts) error {
	offsets, bytes := map[*backend.Tensor]int64{}, int64(0)
	for _, t := range fresh {
		l, ok := wanted[t]
		if !ok {
			l = layoutOf(t, nil, own(d.spec).align)
		}
		d.layouts[t], offsets[t] = l, bytes
		bytes += backend.Aligned(l.Bytes(), int64(own(d.spec).align))
	}
	at, err := d.allocBlock("the variables", bytes)
	if err != nil {
		return err
	}
	for t, offset := range offsets {
		d.addresses[t] = at + libsynapse.Ptr(offset)
	}
	return d.failure("clear the variables", bytes, d.fill(at, 0, bytes))
}

// allocBlock allocates device memory, at least one aligned unit.
func (d *device) allocBlock(what string, bytes int64) (libsynapse.Ptr, error) {
	bytes = max(bytes, int64(own(d.spec).align))
	at, err := d.alloc(bytes)
	if err != nil {
		return 0, d.failure("allocate "+what, bytes, err)
	}
	d.blocks = append(d.blocks, at)
	d.allocated += bytes
	return at, nil
}

// Usage returns the memory use that SynapseAI reports.
func (d *device) Usage() (backend.Usage, error) {
	free, total, err := d.memory()
	if err != nil {
		return backend.Usage{}, d.failure("query the memory use", 0, err)
	}
	return backend.Usage{Allocated: d.allocated, Used: int64(total - free), Total: int64(total)}, nil
}

// checkLayouts returns an error if a program needs a variable in another layout than it
// has.
func (d *device) checkLayouts(wanted layouts, programs []*backend.Program) error {
	for t := range d.vars.All() {
		if l, ok := wanted[t]; ok && l != d.layouts[t] {
			return fmt.Errorf("gaudi: program %s needs %s in another layout than the programs loaded before it: load them together", programs[0].Name(), t)
		}
	}
	return nil
}

// Write returns as soon as src is copied, before the device has it.
func (d *device) Write(t *backend.Tensor, src []byte) error {
	if err := d.vars.CheckCopy(t, len(src)); err != nil {
		return err
	}
	return d.variables().Write(t, src)
}

func (d *device) Read(t *backend.Tensor, dst []byte) error {
	if err := d.vars.CheckCopy(t, len(dst)); err != nil {
		return err
	}
	return d.variables().fetch(t, dst)
}

func (d *device) upload(to libsynapse.Ptr, src []byte) error {
	return d.failure("copy to the device", 0, d.write(to, src))
}

func (d *device) download(dst []byte, from libsynapse.Ptr) error {
	return d.failure("copy from the device", 0, d.read(dst, from))
}

// Close frees what this backend allocated. After a device loss it frees nothing: the next
// call might never return.
func (d *device) Close() error {
	if !d.vars.Close() {
		return nil // the memory may belong to another backend now
	}
	var errs []error
	d.lost = d.lost || d.ended() != nil
	if !d.lost { // pending work may use the memory that is freed
		if err := d.failure("close", 0, d.synchronize()); err != nil && !d.lost {
			errs = append(errs, err)
		}
	}
	if !d.lost {
		for _, list := range d.lists {
			errs = append(errs, d.forget(list))
		}
		for _, at := range d.blocks {
			errs = append(errs, d.free(at))
		}
	}
	errs = append(errs, d.release())
	*d = device{synapse: d.synapse, spec: d.spec, lost: d.lost, vars: d.vars}
	return errors.Join(errs...)
}

// failure wraps an error of the device: what failed, and with how many bytes if bytes is
// not 0.
func (d *device) failure(what string, bytes int64, err error) error {
	if err == nil {
		return nil
	}
	prefix := "gaudi"
	if d.group != nil {
		prefix = fmt.Sprintf("gaudi: rank %d", d.group.Rank())
	}
	if ended := d.ended(); ended != nil {
		err = ended
	}
	var e *libsynapse.Error // declared here because it escapes to the heap
	switch {
	case errors.Is(err, backend.ErrDeviceLost): // the error names the rank
		d.lost, prefix = true, "gaudi"
	case errors.As(err, &e) && e.DeviceLost():
		d.lost = true
		err = fmt.Errorf("%w: %w; only a new process gets the device back, start again", backend.ErrDeviceLost, err)
		d.abort(err)
	case errors.As(err, &e) && e.OutOfMemory():
		free, total, _ := d.memory() // 0: unknown
		return backend.OutOfMemory(prefix+": "+what, bytes, int64(free), int64(total), e)
	}
	return fmt.Errorf("%s: %s: %w", prefix, what, err)
}
