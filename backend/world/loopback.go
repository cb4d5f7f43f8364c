package world

import (
	"fmt"
	"net"
	"os"
)

// inheritedVariable says that rank 0 inherits the listener of the rendezvous as its first file
// after the standard streams, so that no other process can take the port.
const inheritedVariable = "OCTET_RENDEZVOUS_LISTENER"

// supervisedVariable is set for ranks that a process of Octet started.
const supervisedVariable = "OCTET_SUPERVISED"

// InheritedListener is the setting of rank 0's environment for a listener of [Loopback].
const InheritedListener = inheritedVariable + "=3"

// Loopback returns the address of a rendezvous on this machine for ranks that the caller starts,
// and the listening socket that rank 0 inherits. The file is nil where processes cannot inherit
// sockets; rank 0 listens at the address then.
func Loopback() (address string, listener *os.File, err error) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return "", nil, fmt.Errorf("the rendezvous of the ranks: %w", err)
	}
	address = l.Addr().String()
	listener, err = l.File()
	if err != nil {
		listener = nil
	}
	return address, listener, l.Close()
}

// Listener is a socket at which rank 0 can wait for the other ranks, see [Options].
type Listener struct{ net.Listener }

// Listen returns a listener at a free port, and its address: for ranks of other machines, too, or
// on the loopback interface.
func Listen(machines bool) (l *Listener, address string, err error) {
	host := "127.0.0.1"
	if machines {
		host = ""
	}
	socket, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, "", fmt.Errorf("the rendezvous of the ranks: %w", err)
	}
	if machines {
		if host, err = os.Hostname(); err != nil {
			return nil, "", err
		}
	}
	_, port, err := net.SplitHostPort(socket.Addr().String())
	return &Listener{socket}, net.JoinHostPort(host, port), err
}

// Environment returns the variables that tell a process its place among ranks on this machine.
func Environment(rank, ranks int, address string) []string {
	return []string{
		fmt.Sprint("OCTET_RANK=", rank), fmt.Sprint("OCTET_RANKS=", ranks),
		fmt.Sprint("OCTET_LOCAL_RANK=", rank), fmt.Sprint("OCTET_LOCAL_RANKS=", ranks),
		RendezvousVariable + "=" + address, supervisedVariable + "=1",
	}
}

// inherited returns the listener that this process has inherited; nil if it has none.
func inherited() (net.Listener, error) {
	if os.Getenv(inheritedVariable) == "" {
		return nil, nil
	}
	f := os.NewFile(3, "rendezvous")
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("%s is set, but there is no such socket: %w", inheritedVariable, err)
	}
	return l, f.Close()
}
