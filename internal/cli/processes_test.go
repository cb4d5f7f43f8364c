package cli

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"octet/backend"
	"octet/backend/world"
)

// processes is a backend whose ranks are processes: emu, with collectives over the control
// plane. It has all-reduce alone.
const processes = "emu-processes"

// registerProcesses registers the backend. Its processes are this test binary.
func registerProcesses() {
	d, _, err := backend.Find("emu")
	if err != nil {
		panic(err)
	}
	specOf, open := d.Spec, d.Open
	d.Name, d.Priority = processes, -1
	d.Spec = func(device string) (backend.Spec, error) {
		if device == "absent" {
			device = ""
		}
		s, err := specOf(device)
		s.HostMemory = false
		return s, err
	}
	d.Open = func(device string, o backend.Options) (backend.Backend, error) {
		if device == "absent" && o.Group.Rank() == 1 {
			return nil, fmt.Errorf("device 1: %w", backend.ErrNoDevice)
		}
		g := o.Group
		o.Group = nil
		b, err := open("", o)
		return rankDevice{b, g}, err
	}
	backend.Register(d)
}

type rankDevice struct {
	backend.Backend
	group *world.Group
}

func (d rankDevice) Spec() backend.Spec {
	s := d.Backend.Spec()
	s.HostMemory = false
	return s
}

func (d rankDevice) Load(programs ...*backend.Program) ([]backend.Executable, error) {
	list, err := d.Backend.Load(programs...)
	for i, e := range list {
		list[i] = rankProgram{e, d.group}
	}
	return list, err
}

type rankProgram struct {
	backend.Executable
	group *world.Group
}

func (p rankProgram) Run(ctx context.Context) error {
	return p.RunObserved(ctx, func(n *backend.Node, m backend.Memory) error {
		p.group.RanOp()
		o, ok := n.Op.(*backend.AllReduce)
		if !ok {
			return nil
		}
		mine, err := m.Read(o.X)
		if err != nil {
			return err
		}
		for at := 0; at < len(mine); at += 32 << 10 {
			part := mine[at:min(at+32<<10, len(mine))]
			all, err := p.group.Exchange(ctx, n.Path(), bytes.Clone(part))
			if err != nil {
				return fmt.Errorf("%w: %w", backend.ErrDeviceLost, err)
			}
			for i := 0; i < len(part); i += 4 {
				result := float32(0)
				for rank, other := range all {
					x := math.Float32frombits(binary.LittleEndian.Uint32(other[i:]))
					switch {
					case o.Reduce == backend.ReduceMax:
						result = max(result, float32(math.Abs(float64(x))))
					case rank == 0:
						result = x
					default:
						result += x
					}
				}
				binary.LittleEndian.PutUint32(part[i:], math.Float32bits(result))
			}
		}
		return m.Write(o.X, mine)
	})
}
