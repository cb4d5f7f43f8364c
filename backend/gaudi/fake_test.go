package gaudi

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"octet/backend"
	"octet/backend/world"
	"octet/csrc/libsynapse"
)

// fake is a device in Go that runs launches in the interpreter. It checks what a device
// would check, and can fail.
type fake struct {
	info     hardware
	blocks   map[libsynapse.Ptr][]byte
	next     libsynapse.Ptr
	graphs   []*libsynapse.Graph
	lists    map[int][]command
	groups   []backend.Group // connected
	rng      *rand.Rand
	released int
	fail     map[string]error // by method
}

func newFake(model string) *fake {
	return &fake{
		info:   hardware{Name: "fake", Bus: "0000:07:00.0", Driver: "1.2.3", Model: model, Align: own(models[model]).align},
		blocks: map[libsynapse.Ptr][]byte{}, next: 1 << 40, lists: map[int][]command{}, rng: rand.New(rand.NewPCG(3, 4)), fail: map[string]error{},
	}
}

func (f *fake) hardware() hardware { return f.info }

func (f *fake) memory() (free, total uint64, err error) { return 1 << 30, 3 << 30, f.fail["memory"] }

func (f *fake) alloc(n int64) (libsynapse.Ptr, error) {
	if err := f.fail["alloc"]; err != nil {
		return 0, err
	}
	at := f.next
	f.blocks[at] = bytes.Repeat([]byte{0xff}, int(n)) // NaN
	f.next += libsynapse.Ptr(n+int64(f.info.Align)) * 2 / libsynapse.Ptr(f.info.Align) * libsynapse.Ptr(f.info.Align)
	return at, nil
}

func (f *fake) free(at libsynapse.Ptr) error {
	if f.blocks[at] == nil {
		return fmt.Errorf("there is no block at %#x", at)
	}
	delete(f.blocks, at)
	return f.fail["free"]
}

// at returns n bytes of one block.
func (f *fake) at(p libsynapse.Ptr, n int) ([]byte, error) {
	for from, block := range f.blocks {
		if p >= from && p+libsynapse.Ptr(n) <= from+libsynapse.Ptr(len(block)) {
			return block[p-from:][:n], nil
		}
	}
	return nil, fmt.Errorf("%d bytes at %#x are in no block", n, p)
}

func (f *fake) fill(to libsynapse.Ptr, value byte, n int64) error {
	dst, err := f.at(to, int(n))
	copy(dst, bytes.Repeat([]byte{value}, len(dst)))
	return err
}

func (f *fake) write(to libsynapse.Ptr, src []byte) error {
	dst, err := f.at(to, len(src))
	copy(dst, src)
	return errors.Join(err, f.fail["write"])
}

func (f *fake) read(dst []byte, from libsynapse.Ptr) error {
	src, err := f.at(from, len(dst))
	copy(dst, src)
	return errors.Join(err, f.fail["read"])
}

func (f *fake) compile(list []program) ([]compiled, error) {
	var recipes []compiled
	for _, p := range list {
		recipes = append(recipes, compiled{len(f.graphs), 64})
		f.graphs = append(f.graphs, p.Graph)
	}
	return recipes, f.fail["compile"]
}

func (f *fake) prepare(list []command) (int, error) {
	f.next += libsynapse.Ptr(f.info.Align)
	n := int(f.next)
	f.lists[n] = list
	return n, nil
}

func (f *fake) forget(list int) error {
	delete(f.lists, list)
	return nil
}

func (f *fake) run(list, from, to int) error {
	for _, c := range f.lists[list][from:to] {
		if t := c.Transfer; t != nil {
			if t.Kind != localCopy {
				return errors.New("there are no other ranks")
			}
			src, err := f.at(t.From, t.Count)
			if err == nil {
				err = f.write(t.To, src)
			}
			if err != nil {
				return err
			}
			continue
		}
		g := f.graphs[c.Recipe]
		length := make([]int, g.Sections)
		for _, t := range g.Tensors {
			if t.Section >= 0 {
				length[t.Section] = max(length[t.Section], int(t.Offset+t.Bytes()))
			}
		}
		sections := make([][]byte, g.Sections)
		for i, p := range c.Sections {
			if p%libsynapse.Ptr(f.info.Align) != 0 {
				return fmt.Errorf("section %d lies at %#x", i, p)
			}
			var err error
			if sections[i], err = f.at(p, length[i]); err != nil {
				return err
			}
		}
		if _, err := f.at(c.Workspace, 64); err != nil {
			return fmt.Errorf("workspace: %w", err)
		}
		if err := (&launch{spec: models[f.info.Model], rng: f.rng, g: g, sections: sections}).run(); err != nil {
			return err
		}
	}
	return f.fail["run"]
}

// time returns a millisecond for each command.
func (f *fake) time(list, from, to int) (time.Duration, error) {
	return time.Duration(to-from) * time.Millisecond, errors.Join(f.run(list, from, to), f.fail["synchronize"])
}

func (f *fake) synchronize() error        { return f.fail["synchronize"] }
func (f *fake) uniqueID() ([]byte, error) { return []byte("group"), f.fail["uniqueID"] }

func (f *fake) join(*world.Group) error { return f.fail["join"] }

func (f *fake) connect(groups []backend.Group) error {
	f.groups = append(f.groups, groups...)
	return f.fail["connect"]
}

func (f *fake) release() error {
	f.released++
	return nil
}

var _ synapse = (*fake)(nil)

// fakeDriver returns a driver that opens a new fake for every device.
func fakeDriver(model string) backend.Driver {
	d := interpreterDriver(model)
	d.Open = func(_ string, o backend.Options) (backend.Backend, error) {
		if o.Group != nil {
			return nil, fmt.Errorf("one rank: %w", backend.ErrUnsupported)
		}
		return newDevice(newFake(model), nil, deviceOptions{unit: 1})
	}
	return d
}
