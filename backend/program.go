package backend

import (
	"fmt"
	"slices"

	"octet/fp8"
)

// Phase says which part of a step a node belongs to.
type Phase uint8

const (
	Forward Phase = iota
	Backward
	Recompute
	Update
	Comm
)

var phaseNames = [...]string{"fwd", "bwd", "recompute", "update", "comm"}

func (p Phase) String() string { return phaseNames[p] }

// Queue selects a node's hardware queue; queues may run concurrently.
type Queue uint8

const (
	ComputeQueue Queue = iota
	CommQueue
)

var queueNames = [...]string{"compute", "comm"}

func (q Queue) String() string { return queueNames[q] }

// Node is an op in a program, with its place in the model.
type Node struct {
	Op    Op
	Scope string // module path: "layers.3.mlp"
	Block string // name of the range of nodes that can be compiled as one unit; "" outside
	Phase Phase
	Queue Queue

	operands []Operand // collected once, when the node is added
}

// Operands lists the tensors that the op touches, scales included, in the
// order of its fields.
func (n *Node) Operands() []Operand { return n.operands }

// Path returns the scope and the op, as errors and profiles name a node.
func (n *Node) Path() string {
	if n.Scope == "" {
		return opName(n.Op)
	}
	return n.Scope + ": " + opName(n.Op)
}

// Program is a flat list of ops in a valid serial order, for one purpose: a
// micro-batch, an update, an evaluation. A *Program is a cheap handle on the list:
// Scope, At, Block, Phase and On return handles that mark the nodes added through them.
type Program struct {
	rec   *record
	scope string
	block string
	phase Phase
	queue Queue
}

type record struct {
	name    string
	vars    *Vars
	nodes   []*Node
	temps   map[string]*Tensor
	order   []*Tensor             // temps in the order of declaration
	written map[*Tensor][]*Tensor // by root: the tensors and views that ops wrote
	err     error
}

// Name returns the name given to Vars.Program.
func (p *Program) Name() string { return p.rec.name }

// Vars returns the persistent tensors that the program uses.
func (p *Program) Vars() *Vars { return p.rec.vars }

// Nodes returns the list of nodes. The caller must not change it.
func (p *Program) Nodes() []*Node { return p.rec.nodes }

// Temps lists the program's own tensors in the order of declaration.
func (p *Program) Temps() []*Tensor { return p.rec.order }

// Err returns the first error of any declaration or Add.
func (p *Program) Err() error {
	if p.rec.vars.err != nil {
		return p.rec.vars.err
	}
	return p.rec.err
}

// Scope returns a handle whose nodes and temps have name appended to p's path.
func (p *Program) Scope(name string) *Program {
	q := *p
	q.scope = join(p.scope, name)
	return &q
}

// At returns a handle whose nodes and temps have the given absolute path.
func (p *Program) At(path string) *Program {
	q := *p
	q.scope = path
	return &q
}

// Path returns the module path of the nodes added through p.
func (p *Program) Path() string { return p.scope }

// Block returns a handle whose nodes form the named block.
func (p *Program) Block(name string) *Program {
	q := *p
	q.block = name
	return &q
}

// Phase returns a handle whose nodes carry the phase.
func (p *Program) Phase(phase Phase) *Program {
	q := *p
	q.phase = phase
	return &q
}

// On returns a handle whose nodes run on the queue.
func (p *Program) On(queue Queue) *Program {
	q := *p
	q.queue = queue
	return &q
}

func join(scope, name string) string {
	if scope == "" {
		return name
	}
	return scope + "." + name
}

// Temp declares a tensor that lives inside the program. Its name is p's path and name,
// and must be new.
func (p *Program) Temp(name string, dtype fp8.DType, shape ...int) *Tensor {
	t := &Tensor{Name: join(p.scope, name), DType: dtype, Shape: shape, Class: Temp}
	if err := t.validate(); err != nil {
		p.fail(err)
		t.Shape = []int{1}
	}
	t.LD = t.Cols()
	p.rec.declare(t)
	return t
}

func (r *record) declare(t *Tensor) {
	if r.temps[t.Name] != nil || r.vars.byName[t.Name] != nil {
		r.fail(fmt.Errorf("program %s: tensor %s is declared twice", r.name, t.Name))
		return
	}
	r.temps[t.Name] = t
	r.order = append(r.order, t)
}

// Add appends an op and checks shapes, formats and the single-writer rule. Like
// bufio.Writer, it keeps the first error and then adds nothing more; see Err.
func (p *Program) Add(op Op) {
	if p.rec.err != nil {
		return
	}
	p.rec.add(&Node{Op: op, Scope: p.scope, Block: p.block, Phase: p.phase, Queue: p.queue})
}

func (p *Program) fail(err error) { p.rec.fail(err) }

func (r *record) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// add checks the node and appends it. Passes that rewrite programs use it too, so the
// same rules apply to their results.
func (r *record) add(n *Node) {
	var operands []Operand
	err := checkFields(n.Op)
	if err == nil {
		operands, err = collectOperands(n.Op)
	}
	if err == nil {
		err = checkExpanded(n.Op, operands)
	}
	if err == nil {
		err = r.checkAccess(operands)
	}
	if err == nil {
		err = checkOp(n.Op, operands)
	}
	if err != nil {
		r.fail(fmt.Errorf("%s: %w", n.Path(), err))
		return
	}
	n.operands = operands
	for _, o := range operands {
		if o.Access != In {
			r.written[o.Tensor.Root()] = append(r.written[o.Tensor.Root()], o.Tensor)
		}
	}
	r.nodes = append(r.nodes, n)
}

// checkAccess checks that tensors are declared, that only the host writes inputs, that
// a temp is written before it is read, and that only ops that accumulate write it again.
func (r *record) checkAccess(operands []Operand) error {
	for i, o := range operands {
		root := o.Tensor.Root()
		if err := o.Tensor.validate(); err != nil {
			return err
		}
		isScale := slices.ContainsFunc(operands, func(p Operand) bool { return p.Tensor.Scale == o.Tensor })
		if err := o.Tensor.validateScale(); err != nil && !isScale {
			return fmt.Errorf("%s: %w", o.Field, err)
		}
		owner := r.temps[root.Name]
		if root.Class != Temp {
			owner = r.vars.byName[root.Name]
		}
		if owner != root {
			return fmt.Errorf("%s: tensor %s is not declared in this program", o.Field, root.Name)
		}
		if root.Class == Input && o.Access != In {
			return fmt.Errorf("%s: %s is an input: only the host writes it", o.Field, o.Tensor)
		}
		if root.Class != Temp {
			continue
		}
		switch written := r.written[root]; {
		case o.Access == Out && (anyOverlaps(written, o.Tensor) || anyOverlaps(outputs(operands[:i]), o.Tensor)):
			return fmt.Errorf("%s: temp %s is written twice; give the second result a name of its own", o.Field, o.Tensor)
		case o.Access != Out && len(written) == 0:
			return fmt.Errorf("%s: temp %s is read before an op writes it", o.Field, o.Tensor)
		}
	}
	return nil
}

func outputs(operands []Operand) []*Tensor {
	var list []*Tensor
	for _, o := range operands {
		if o.Access != In {
			list = append(list, o.Tensor)
		}
	}
	return list
}

func anyOverlaps(list []*Tensor, t *Tensor) bool {
	for _, w := range list {
		if w.Overlaps(t) {
			return true
		}
	}
	return false
}
