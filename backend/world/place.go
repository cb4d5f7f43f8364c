package world

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Place is the place of one process among the ranks of a run.
type Place struct {
	Rank, Size int
	// LocalRank counts the ranks of this machine, and chooses the device.
	LocalRank int
	// LocalSize is the number of ranks on this machine; 0: unknown.
	LocalSize int
	// Address is the HOST:PORT at which rank 0 listens. It is empty if the launcher names
	// none: MPI can tell the ranks.
	Address  string
	Launcher string // "torchrun"
	Restarts int    // of the whole run, by the launcher
}

// String describes the place: "rank 2 of 8, local rank 2, by torchrun".
func (p Place) String() string {
	text := fmt.Sprintf("rank %d of %d, local rank %d, by %s", p.Rank, p.Size, p.LocalRank, p.Launcher)
	if p.Address != "" {
		text += ", rendezvous " + p.Address
	}
	if p.Restarts > 0 {
		text += fmt.Sprintf(", restart %d", p.Restarts)
	}
	return text
}

// Supervised reports whether octet train --ranks started the process.
func (p Place) Supervised() bool { return p.Launcher == launchers[0].name }

// launcher reads the place of a process from the variables that a program for starting
// processes sets.
type launcher struct {
	name                              string
	rank, size, local, restarts, need string                      // variables; empty: there is none
	localSize                         string                      // likewise
	check                             func(env environment) error // nil: none
	address                           func(env environment) (string, error)
}

// RendezvousVariable names the environment variable of the address at which rank 0 listens,
// HOST:PORT. It beats the launcher's.
const RendezvousVariable = "OCTET_RENDEZVOUS"

// launchers are in the order of precedence: a launcher inside another one comes first. srun
// sets variables for mpiexec, too.
var launchers = []launcher{
	{name: "octet train --ranks", need: supervisedVariable, rank: "OCTET_RANK", size: "OCTET_RANKS", local: "OCTET_LOCAL_RANK", localSize: "OCTET_LOCAL_RANKS", address: noAddress},
	{name: "OCTET_RANK", rank: "OCTET_RANK", size: "OCTET_RANKS", local: "OCTET_LOCAL_RANK", localSize: "OCTET_LOCAL_RANKS", address: noAddress},
	{name: "torchrun", rank: "RANK", size: "WORLD_SIZE", local: "LOCAL_RANK", localSize: "LOCAL_WORLD_SIZE", restarts: "TORCHELASTIC_RESTART_COUNT", address: torchAddress},
	{name: "Kubeflow Trainer", rank: "PET_NODE_RANK", size: "PET_NNODES", check: oneProcess, address: kubeflowAddress},
	{name: "Open MPI", rank: "OMPI_COMM_WORLD_RANK", size: "OMPI_COMM_WORLD_SIZE", local: "OMPI_COMM_WORLD_LOCAL_RANK", localSize: "OMPI_COMM_WORLD_LOCAL_SIZE", address: masterAddress},
	{name: "MPI (PMI)", rank: "PMI_RANK", size: "PMI_SIZE", local: "MPI_LOCALRANKID", localSize: "MPI_LOCALNRANKS", address: masterAddress},
	// SLURM_STEP_NODELIST tells a task of srun from the script of sbatch, which has a rank, too.
	{name: "Slurm", rank: "SLURM_PROCID", size: "SLURM_NTASKS", local: "SLURM_LOCALID", restarts: "SLURM_RESTART_COUNT", need: "SLURM_STEP_NODELIST", address: slurmAddress},
}

// environment looks a variable up, as os.LookupEnv does.
type environment func(name string) (value string, found bool)

// get returns a variable's value, or nothing if it is not set.
func (e environment) get(name string) string {
	value, _ := e(name)
	return value
}

// FromEnv returns the place of this process; found says that a launcher started it as one of
// several ranks. lookup is os.LookupEnv. The error names the variables that do not fit.
func FromEnv(lookup func(string) (string, bool)) (p Place, found bool, err error) {
	env := environment(lookup)
	for _, l := range launchers {
		if _, set := env(l.rank); !set || l.need != "" && env.get(l.need) == "" {
			continue
		}
		p, err = l.place(env)
		if err != nil {
			return Place{}, false, fmt.Errorf("the environment of %s: %w", l.name, err)
		}
		return p, p.Size > 1, nil
	}
	return Place{}, false, nil
}

func (l launcher) place(env environment) (p Place, err error) {
	p.Launcher = l.name
	for _, v := range []struct {
		variable string
		to       *int
		needed   bool
	}{{l.rank, &p.Rank, true}, {l.size, &p.Size, true}, {l.local, &p.LocalRank, false}, {l.localSize, &p.LocalSize, false}, {l.restarts, &p.Restarts, false}} {
		text, set := env(v.variable)
		switch {
		case v.variable == "" || !set && !v.needed:
			continue
		case !set:
			return p, fmt.Errorf("%s is set, but %s is not: set both, or neither", l.rank, v.variable)
		}
		if *v.to, err = strconv.Atoi(text); err != nil || *v.to < 0 {
			return p, fmt.Errorf("%s is %q: expected a whole number from 0", v.variable, text)
		}
	}
	if p.Rank >= p.Size {
		return p, fmt.Errorf("%s is %d, but %s is %d: ranks are 0 to %d", l.rank, p.Rank, l.size, p.Size, p.Size-1)
	}
	if l.check != nil {
		if err := l.check(env); err != nil {
			return p, err
		}
	}
	if address, set := env(RendezvousVariable); set {
		p.Address, err = CheckAddress(address)
	} else {
		p.Address, err = l.address(env)
	}
	return p, err
}

// noAddress is the address of processes that were started by hand.
func noAddress(environment) (string, error) {
	return "", fmt.Errorf("%s is not set: it is the address at which rank 0 listens, HOST:PORT", RendezvousVariable)
}

// CheckAddress returns an address of the form HOST:PORT unchanged.
func CheckAddress(address string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err == nil && host != "" {
		err = checkPort(port)
	}
	if err != nil || host == "" {
		return "", fmt.Errorf("the rendezvous %q is not an address: expected HOST:PORT, such as node1:29500", address)
	}
	return address, nil
}

func checkPort(port string) error {
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("%q is not a port: expected 1 to 65535", port)
	}
	return nil
}

// defaultPort is the port of a rendezvous whose launcher names a host alone; that of
// PyTorch.
const defaultPort = "29500"

// masterAddress returns the address of MASTER_ADDR and MASTER_PORT; nothing without them.
func masterAddress(env environment) (string, error) {
	host := env.get("MASTER_ADDR")
	if host == "" {
		return "", nil
	}
	port, set := env("MASTER_PORT")
	if !set {
		port = defaultPort
	}
	return CheckAddress(net.JoinHostPort(host, port))
}

// torchAddress returns the port above MASTER_PORT if torchrun's own store listens there.
func torchAddress(env environment) (string, error) {
	address, err := masterAddress(env)
	switch {
	case err != nil:
		return "", err
	case address == "":
		return "", errors.New("MASTER_ADDR is not set: it names the host of rank 0")
	case env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
		return address, nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return "", err
	}
	return CheckAddress(net.JoinHostPort(host, strconv.Itoa(n+1)))
}

// oneProcess returns an error unless the nodes of a TrainJob have one process each.
func oneProcess(env environment) error {
	if n := env.get("PET_NPROC_PER_NODE"); n != "" && n != "1" {
		return fmt.Errorf("PET_NPROC_PER_NODE is %s: set numProcPerNode to 1 and start one pod for each device, or start the ranks by torchrun", n)
	}
	return nil
}

// kubeflowAddress returns the address of the first node of a TrainJob.
func kubeflowAddress(env environment) (string, error) {
	host, port := env.get("PET_MASTER_ADDR"), env.get("PET_MASTER_PORT")
	if port == "" {
		port = defaultPort
	}
	return CheckAddress(net.JoinHostPort(host, port))
}

// slurmAddress returns the first host of a step, and a port that depends on the job and the
// step, so that two jobs on one host do not meet at one port.
func slurmAddress(env environment) (string, error) {
	if address, err := masterAddress(env); err != nil || address != "" {
		return address, err
	}
	host, err := firstHost(env.get("SLURM_STEP_NODELIST"))
	if err != nil {
		return "", err
	}
	job, step := 0, 0
	for name, to := range map[string]*int{"SLURM_JOB_ID": &job, "SLURM_STEP_ID": &step} {
		if *to, err = strconv.Atoi(env.get(name)); err != nil {
			return "", fmt.Errorf("%s is %q: expected a number", name, env.get(name))
		}
	}
	// Below 32768, where Linux begins to choose ports of outgoing connections.
	const first, ports = 20_000, 12_000
	return net.JoinHostPort(host, strconv.Itoa(first+(job*31+step)%ports)), nil
}

// firstHost returns the first host of a list in Slurm's notation: "a1" of "a[1-3,7],b2".
func firstHost(list string) (string, error) {
	end := strings.IndexAny(list, "[,")
	if end < 0 {
		end = len(list)
	}
	host := list[:end]
	if end < len(list) && list[end] == '[' {
		numbers, rest, closed := strings.Cut(list[end+1:], "]")
		if !closed {
			return "", fmt.Errorf("the list of hosts %q has no closing bracket", list)
		}
		number, _, _ := strings.Cut(numbers, ",")
		number, _, _ = strings.Cut(number, "-")
		rest, _, _ = strings.Cut(rest, ",")
		host += number + rest
	}
	if host == "" || strings.ContainsAny(host, "[]") {
		return "", fmt.Errorf("the list of hosts %q does not begin with a host", list)
	}
	return host, nil
}
