package cost

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"octet/internal/spelling"
)

// Device is a product that a cluster can consist of.
type Device struct {
	Title string `toml:"title"`
	// Backend is the backend that programs are lowered for, as --backend takes it; empty for a
	// device that Octet does not run on, which Unsupported then explains.
	Backend     string  `toml:"backend"`
	Unsupported string  `toml:"unsupported"`
	Link        string  `toml:"link"` // network within a node
	NIC         string  `toml:"nic"`  // network between nodes
	Node        int     `toml:"node"` // devices of a node as it is sold; 0: unknown
	Numbers     Numbers `toml:"number"`
}

// Network connects devices. Its numbers are named bandwidth, GB/s of a device each way, and,
// unless the default applies, latency.
type Network struct {
	Title   string  `toml:"title"`
	Numbers Numbers `toml:"number"`
}

// Table holds devices, networks and the numbers that all devices share.
type Table struct {
	Common   Numbers            `toml:"number"`
	Devices  map[string]Device  `toml:"device"`
	Networks map[string]Network `toml:"network"`
}

//go:embed devices.toml
var embedded string

// Devices returns the table that is part of Octet, with sources.
func Devices() Table {
	t, err := ParseTable(embedded)
	if err == nil {
		err = t.check()
	}
	if err != nil {
		panic(err) // TestDevices reads it
	}
	return t
}

// ParseTable reads a table in TOML. A number without a source, an unknown key and a value out of
// range are errors.
func ParseTable(text string) (Table, error) {
	var t Table
	meta, err := toml.Decode(text, &t)
	if err != nil {
		return Table{}, err
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return Table{}, fmt.Errorf("unknown key %s", unknown[0])
	}
	if err := t.Common.check("number"); err != nil {
		return Table{}, err
	}
	for name, d := range t.Devices {
		if err := d.Numbers.check("device." + name + ".number"); err != nil {
			return Table{}, err
		}
		for _, number := range []string{"link", "nic", "link_latency", "nic_latency"} {
			if _, ok := d.Numbers[number]; ok {
				return Table{}, fmt.Errorf("device.%s.number.%s: it is a number of a network: add a [network.NAME] and name it by link or nic", name, number)
			}
		}
		if !clusterName.MatchString(name) {
			return Table{}, fmt.Errorf("device.%s: expected a name of letters, digits, - and _", name)
		}
		if (d.Backend == "") == (d.Unsupported == "") {
			return Table{}, fmt.Errorf("device.%s: give its backend, or with unsupported the reason for having none", name)
		}
	}
	for name, w := range t.Networks {
		for key, n := range w.Numbers {
			if key != "bandwidth" && key != "latency" {
				return Table{}, fmt.Errorf("network.%s.number.%s: a network has a bandwidth and a latency", name, key)
			}
			if err := n.check(key); err != nil {
				return Table{}, fmt.Errorf("network.%s.number.%s: %w", name, key, err)
			}
		}
		if w.Numbers["bandwidth"].Value <= 0 {
			return Table{}, fmt.Errorf("network.%s: give its number.bandwidth, GB/s of a device each way", name)
		}
	}
	return t, nil
}

// With returns t with the rows of u added, which replace rows of the same name.
func (t Table) With(u Table) (Table, error) {
	sum := Table{joined(t.Common, u.Common), joined(t.Devices, u.Devices), joined(t.Networks, u.Networks)}
	return sum, sum.check()
}

// joined returns a copy of a with the entries of b, which replace those of equal keys.
func joined[M ~map[string]V, V any](a, b M) M {
	sum := M{}
	maps.Copy(sum, a)
	maps.Copy(sum, b)
	return sum
}

// check requires the networks that devices name.
func (t Table) check() error {
	for name, d := range t.Devices {
		for _, w := range []string{d.Link, d.NIC} {
			if _, ok := t.Networks[w]; w != "" && !ok {
				return fmt.Errorf("device.%s: unknown network %q%s", name, w, spelling.DidYouMean(w, slices.Collect(maps.Keys(t.Networks))))
			}
		}
	}
	return nil
}

func (n Numbers) check(path string) error {
	for name, x := range n {
		if _, ok := meaning[name]; !ok {
			return fmt.Errorf("%s.%s: unknown number%s", path, name, spelling.DidYouMean(name, slices.Collect(maps.Keys(meaning))))
		}
		if err := x.check(name); err != nil {
			return fmt.Errorf("%s.%s: %w", path, name, err)
		}
	}
	return nil
}

// Cluster is a number of equal nodes with equal devices.
type Cluster struct {
	Device         string // its name in the table
	PerNode, Nodes int
}

// Devices returns the number of devices.
func (c Cluster) Devices() int { return c.PerNode * c.Nodes }

// String returns the form that ParseCluster reads.
func (c Cluster) String() string { return fmt.Sprintf("%s:%dx%d", c.Device, c.PerNode, c.Nodes) }

// Of returns the cluster with n devices: full nodes if n allows, else one part of a node.
func (c Cluster) Of(n int) (Cluster, error) {
	switch {
	case n <= c.PerNode:
		return Cluster{c.Device, n, 1}, nil
	case n%c.PerNode != 0:
		return c, fmt.Errorf("%d devices are no full nodes of %d", n, c.PerNode)
	}
	return Cluster{c.Device, c.PerNode, n / c.PerNode}, nil
}

var (
	clusterName = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	clusterText = regexp.MustCompile(`^([A-Za-z0-9_-]+)(?::([1-9][0-9]{0,5})(?:x([1-9][0-9]{0,5}))?)?$`)
)

// MaxDevices is the largest cluster that can be described.
const MaxDevices = 1 << 20

// ParseCluster reads "h100", "h100:8" (devices of one node) or "h100:8x32" (devices of a node,
// nodes).
func ParseCluster(text string) (Cluster, error) {
	m := clusterText.FindStringSubmatch(text)
	if m == nil {
		return Cluster{}, fmt.Errorf("cluster %q: expected DEVICE:NxM, N devices in each of M nodes, such as h100:8x32", text)
	}
	c := Cluster{m[1], 1, 1}
	for i, to := range []*int{&c.PerNode, &c.Nodes} {
		if m[i+2] != "" {
			*to, _ = strconv.Atoi(m[i+2]) // six digits
		}
	}
	if c.Devices() > MaxDevices {
		return Cluster{}, fmt.Errorf("cluster %q has more than %d devices", text, MaxDevices)
	}
	return c, nil
}

// ErrNoData is wrapped by the error for a number that no source gives.
var ErrNoData = errors.New("no data")

// Machine is a cluster with the numbers that apply to it.
type Machine struct {
	Cluster
	Network     string // between nodes, if it is another than that of the device
	Title       string
	Backend     string
	Unsupported string // the reason why Octet has no backend for the device; "" if it has one
	NodeSize    int    // devices of a node as it is sold; 0: unknown
	Numbers     Numbers
	Calibration *Calibration // measured on a device; may be nil
}

// Machine returns the machine of a cluster. A network other than that of the device replaces it
// between nodes. Numbers of the device go before those that all devices share.
func (t Table) Machine(c Cluster, network string) (Machine, error) {
	d, ok := t.Devices[c.Device]
	if !ok {
		known := slices.Sorted(maps.Keys(t.Devices))
		return Machine{}, fmt.Errorf("unknown device %q%s (known: %s)", c.Device, spelling.DidYouMean(c.Device, known), strings.Join(known, ", "))
	}
	m := Machine{Cluster: c, Network: network, Title: d.Title, Backend: d.Backend, Unsupported: d.Unsupported, NodeSize: d.Node, Numbers: joined(t.Common, nil)}
	if network == "" {
		network = d.NIC
	} else if _, ok := t.Networks[network]; !ok {
		known := slices.Sorted(maps.Keys(t.Networks))
		return Machine{}, fmt.Errorf("unknown network %q%s (known: %s)", network, spelling.DidYouMean(network, known), strings.Join(known, ", "))
	}
	for number, name := range map[string]string{"link": d.Link, "nic": network} {
		if name == "" {
			continue
		}
		m.Numbers[number] = t.Networks[name].Numbers["bandwidth"]
		if latency, ok := t.Networks[name].Numbers["latency"]; ok {
			m.Numbers[number+"_latency"] = latency
		}
	}
	maps.Copy(m.Numbers, d.Numbers)
	return m, nil
}

// Assume sets numbers as "name=value" gives them, in place of data.
func (m *Machine) Assume(list ...string) error {
	m.Numbers = joined(m.Numbers, nil)
	for _, text := range list {
		name, value, err := assumption(text)
		if err != nil {
			return err
		}
		m.Numbers[name] = Number{Value: value, Assumed: "given on the command line"}
	}
	return nil
}
