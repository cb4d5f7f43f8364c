package gaudi

import (
	"errors"
	"fmt"
	"maps"

	"octet/backend"
	"octet/csrc/libsynapse"
)

// device is a backend: the memory of one set of variables on a Gaudi.
type device struct {
	synapse
	spec  backend.Spec
	rank  int
	ranks int
	lost  bool // nothing more is to be asked of it
	ended bool // by Close

	allocated int64 // bytes of the device
	vars      *backend.Vars
	homes     map[*backend.Tensor]libsynapse.Ptr // of the variables
	layouts   layouts                            // of those that do not lie as on the host
	loaded    []*backend.Program

	blocks []libsynapse.Ptr // all memory that was taken
	lists  []int            // all commands that were prepared
}

// newDevice is the backend of one of the ranks, with the options of its wish.
func newDevice(s synapse, rank, ranks int, w wish) (*device, error) {
	h := s.hardware()
	if _, ok := models[h.Model]; !ok {
		return nil, fmt.Errorf("%w that can be used: the device is a %s, and only Gaudi 2 and 3 compute in FP8", backend.ErrNoDevice, h.Name)
	}
	model, err := w.spec(h.Model)
	if err != nil {
		return nil, err
	}
	model.Device = fmt.Sprintf("%s, %s, SynapseAI %s", model.Device, h.Name, h.Driver)
	model.Arithmetic = fmt.Sprintf("%s+synapse%s", h.Model, h.Driver)
	if w.unit > 1 { // the compiler fuses across blocks, and may round elsewhere
		model.Arithmetic += fmt.Sprintf("+unit%d", w.unit)
	}
	model.Align = h.Align
	return &device{synapse: s, spec: model, rank: rank, ranks: ranks}, nil
}

func (d *device) Spec() backend.Spec { return d.spec }

// Bind takes one block of memory for all variables. They lie there as on the
// host until Load has seen what programs want.
func (d *device) Bind(vars *backend.Vars) error {
	if err := vars.Err(); err != nil {
		return err
	}
	if d.vars != nil {
		return errors.New("gaudi: this backend is bound already; open another one for other variables")
	}
	lies := layouts{}
	for t := range vars.All() {
		lies[t] = layoutOf(t, nil, d.spec.Align)
	}
	homes, err := d.settle("the variables", vars, lies)
	if err != nil {
		return err
	}
	d.vars, d.homes, d.layouts = vars, homes, layouts{}
	return nil
}

// settle takes one block for the variables that are laid out, and clears it.
func (d *device) settle(what string, vars *backend.Vars, lies layouts) (map[*backend.Tensor]libsynapse.Ptr, error) {
	homes, bytes := map[*backend.Tensor]libsynapse.Ptr{}, int64(0)
	for t := range vars.All() { // in an order that repeats
		if l, ok := lies[t]; ok {
			homes[t] = libsynapse.Ptr(bytes)
			bytes += backend.Aligned(l.Bytes(), int64(d.spec.Align))
		}
	}
	at, err := d.take(what, bytes)
	if err != nil {
		return nil, err
	}
	for t := range homes {
		homes[t] += at
	}
	return homes, d.failure("clear "+what, bytes, d.fill(at, 0, bytes))
}

// take allocates device memory, also where nothing is wanted.
func (d *device) take(what string, bytes int64) (libsynapse.Ptr, error) {
	bytes = max(bytes, int64(d.spec.Align))
	at, err := d.alloc(bytes)
	if err != nil {
		return 0, d.failure("allocate "+what, bytes, err)
	}
	d.blocks = append(d.blocks, at)
	d.allocated += bytes
	return at, nil
}

// Usage is what SynapseAI tells of the device.
func (d *device) Usage() (backend.Usage, error) {
	free, total, err := d.memory()
	if err != nil {
		return backend.Usage{}, d.failure("ask for the use of memory", 0, err)
	}
	return backend.Usage{Allocated: d.allocated, Used: int64(total - free), Total: int64(total)}, nil
}

// layOut gives the variables the layouts that programs want, with their
// contents. They are small, as everything is whose elements have places of their
// own; that their old places stay empty does not matter.
func (d *device) layOut(wanted layouts, programs []*backend.Program) error {
	moved := layouts{}
	for t := range d.vars.All() {
		if l, ok := wanted[t]; ok && l != d.layoutOf(t) {
			moved[t] = l
		}
	}
	if len(moved) == 0 {
		return nil
	}
	for _, p := range d.loaded {
		for _, n := range p.Nodes() {
			for _, o := range n.Operands() {
				if _, ok := moved[o.Tensor.Root()]; ok {
					return fmt.Errorf("gaudi: program %s has %s in another layout than program %s, which was loaded before: load them together",
						programs[0].Name(), o.Tensor.Root(), p.Name())
				}
			}
		}
	}
	homes, err := d.settle("packed variables", d.vars, moved)
	if err != nil {
		return err
	}
	for t, l := range moved {
		old, err := d.variables().span(t)
		if err != nil {
			return err
		}
		raw := make([]byte, l.Bytes())
		l.scatter(raw, old)
		if err := d.upload(homes[t], raw); err != nil {
			return err
		}
	}
	maps.Copy(d.homes, homes)
	maps.Copy(d.layouts, moved)
	return nil
}

// layoutOf is how a variable lies.
func (d *device) layoutOf(t *backend.Tensor) layout {
	if l, ok := d.layouts[t]; ok {
		return l
	}
	return layoutOf(t, nil, d.spec.Align)
}

// Write returns when src was copied, before the device has it.
func (d *device) Write(t *backend.Tensor, src []byte) error {
	if err := d.contiguous(t, len(src)); err != nil {
		return err
	}
	return d.variables().Write(t, src)
}

func (d *device) Read(t *backend.Tensor, dst []byte) error {
	if err := d.contiguous(t, len(dst)); err != nil {
		return err
	}
	return d.variables().fetch(t, dst)
}

// contiguous checks a variable or view that is to be copied with a buffer.
func (d *device) contiguous(t *backend.Tensor, n int) error {
	if _, ok := d.homes[t.Root()]; !ok {
		return fmt.Errorf("gaudi: tensor %s is not bound", t)
	}
	if err := t.FitsBuffer(n); err != nil {
		return fmt.Errorf("gaudi: %w", err)
	}
	return nil
}

func (d *device) upload(to libsynapse.Ptr, src []byte) error {
	return d.failure("copy to the device", 0, d.write(to, src))
}

func (d *device) download(dst []byte, from libsynapse.Ptr) error {
	return d.failure("copy from the device", 0, d.read(dst, from))
}

// Close gives back what this backend has. Of a device that was lost nothing is
// given back: the next call might never return.
func (d *device) Close() error {
	if d.ended {
		return nil // it would give back what may be another backend's by now
	}
	var errs []error
	if !d.lost { // nothing may be under way in what is freed
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
	*d = device{synapse: d.synapse, spec: d.spec, lost: d.lost, ended: true}
	return errors.Join(errs...)
}

// failure explains an error of the device: what was to be done, with how many
// bytes if that is of interest.
func (d *device) failure(what string, bytes int64, err error) error {
	if err == nil {
		return nil
	}
	who := "gaudi"
	if d.ranks > 1 {
		who = fmt.Sprintf("gaudi: rank %d", d.rank)
	}
	var e *libsynapse.Error // on the heap, so only now
	switch {
	case errors.Is(err, backend.ErrDeviceLost): // by a rank that the error names
		d.lost, who = true, "gaudi"
	case errors.As(err, &e) && e.DeviceLost():
		d.lost = true
		err = fmt.Errorf("%w: %w; only a new process gets the device back, start again", backend.ErrDeviceLost, err)
	case errors.As(err, &e) && e.OutOfMemory():
		free, total, _ := d.memory() // 0: not told
		return backend.OutOfMemory(who+": "+what, bytes, int64(free), int64(total), e)
	}
	return fmt.Errorf("%s: %s: %w", who, what, err)
}
