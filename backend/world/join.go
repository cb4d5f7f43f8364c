package world

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"
)

// Identity is what must be equal in all processes of a run, in the order of its comparison.
type Identity []Field

// Field is a property of a run, such as {"configuration", its hash}.
type Field struct{ Name, Value string }

// greeting is the content of a member's hello.
type greeting struct {
	Rank, Size int
	Host       string
	PID        int
	Identity   Identity
}

func (g *greeting) String() string { return fmt.Sprintf("%s, process %d", g.Host, g.PID) }

// Options are the parameters of Join.
type Options struct {
	Place    Place // with an Address
	Identity Identity
	Secret   Secret        // needed unless Address is of this machine's loopback interface
	Timeout  time.Duration // see Local
	Wait     time.Duration // for the other processes; 0: five minutes
	Silence  time.Duration // a rank without a sign of life for so long is lost; 0: ten seconds
	Listener *Listener     // of rank 0; nil: it listens at the address, or at an inherited socket

	timing timing // zero: that of Timeout
}

// Join connects this process to the other ranks: rank 0 listens at the place's address, and
// the others connect. It returns when all ranks have joined. An error that starting again
// cannot mend, such as two configurations or secrets, is a [*Lost] with CodeInput.
func Join(ctx context.Context, o Options) (*Group, error) {
	if _, err := CheckAddress(o.Place.Address); err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(o.Place.Address)
	if err != nil {
		return nil, err
	}
	if o.Secret == nil && !isLoopback(host) {
		return nil, fmt.Errorf("the rendezvous %s is reachable from other machines, so it needs a secret: set %s to a file with %d or more bytes, the same on all machines", o.Place.Address, secretVariable, minSecret)
	}
	if o.timing == (timing{}) {
		o.timing = timingOf(o.Timeout)
		if o.Silence > 0 {
			o.timing.silent = max(1, int(o.Silence/o.timing.beat))
		}
	}
	o.Wait = cmp.Or(o.Wait, 5*time.Minute)
	config, err := o.Secret.tlsConfig()
	if err != nil {
		return nil, err
	}
	name, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	mine := &greeting{Rank: o.Place.Rank, Size: o.Place.Size, Host: name, PID: os.Getpid(), Identity: o.Identity}
	if o.Place.Rank == 0 {
		return o.listen(ctx, config, mine)
	}
	return o.dial(ctx, config, mine)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// arrival is a process that greeted rank 0, or an error of a connection.
type arrival struct {
	conn  link
	hello *greeting
	err   error
}

// listen waits for the hellos of all other ranks and starts the hub.
func (o Options) listen(ctx context.Context, config *tls.Config, mine *greeting) (*Group, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Wait)
	defer cancel()
	l, err := inherited()
	if o.Listener != nil {
		l = o.Listener
	}
	if err == nil && l == nil {
		var lc net.ListenConfig
		l, err = lc.Listen(ctx, "tcp", o.Place.Address)
	}
	if err != nil {
		return nil, &Lost{Rank: 0, Cause: fmt.Sprintf("it cannot listen at the rendezvous: %v", err), Code: CodeInput}
	}
	defer func() { _ = l.Close() }() // no more ranks are awaited
	arrivals := make(chan arrival)
	go accept(ctx, l, config, arrivals)
	there, here := newLocal()
	conns := make([]link, mine.Size)
	greetings := make([]*greeting, mine.Size)
	conns[0], greetings[0] = here, mine
	var strange error // the last connection that was no member's
	var lost *Lost
	for missing := mine.Size - 1; missing > 0; {
		select {
		case a := <-arrivals:
			if a.err != nil {
				strange = a.err
				continue
			}
			missing--
			if lost == nil {
				lost = refuse(greetings, a.hello)
				if lost == nil {
					conns[a.hello.Rank], greetings[a.hello.Rank] = a.conn, a.hello
					continue
				}
				refuseAll(conns[1:], lost)
				// Processes that connect a little later hear the reason, too.
				ctx, cancel = context.WithTimeout(ctx, linger)
				defer cancel()
			}
			refuseAll([]link{a.conn}, lost)
		case <-ctx.Done():
			if lost == nil {
				lost = absent(ctx, conns, strange)
				refuseAll(conns[1:], lost)
			}
			return nil, lost
		}
	}
	if lost != nil {
		return nil, lost
	}
	hosts := make([]string, mine.Size)
	for rank, g := range greetings {
		hosts[rank] = g.Host
	}
	h := newHub(o.timing, hosts, conns)
	g := newGroup(o.Place, there, o.timing)
	g.hub = h
	return g, nil
}

// linger is how long rank 0 listens after it has refused a rank.
const linger = 2 * time.Second

// accept sends the processes that greet to arrivals, until the listener closes.
func accept(ctx context.Context, l net.Listener, config *tls.Config, arrivals chan<- arrival) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			a := receiveHello(tls.Server(c, config))
			if a.err != nil {
				a.err = fmt.Errorf("a connection from %s: %w", c.RemoteAddr(), a.err)
				_ = c.Close() // it is no member's
			}
			select {
			case arrivals <- a:
			case <-ctx.Done():
				_ = c.Close()
			}
		}()
	}
}

// helloTimeout bounds the time of a handshake and a hello.
const helloTimeout = 10 * time.Second

func receiveHello(c *tls.Conn) (a arrival) {
	a.conn = newConn(c)
	if a.err = c.SetReadDeadline(time.Now().Add(helloTimeout)); a.err != nil {
		return a
	}
	var m message
	if m, a.err = a.conn.receive(); a.err != nil {
		if refusal, ok := errors.AsType[*net.OpError](a.err); ok && refusal.Op == "remote error" {
			a.err = errSecret // an alert of TLS: the other process, too, compares the keys
		}
		return a
	}
	if a.hello = m.Hello; m.Kind != hello || m.Hello == nil {
		a.err = errors.New("it does not greet")
		return a
	}
	a.err = c.SetReadDeadline(time.Time{})
	return a
}

// refuse returns why a process cannot join those that have; nil if it can.
func refuse(known []*greeting, g *greeting) *Lost {
	mine := known[0]
	lost := &Lost{Rank: g.Rank, Host: g.Host, Code: CodeInput}
	switch {
	case g.Size != mine.Size:
		lost.Cause = fmt.Sprintf("it is one of %d ranks, rank 0 one of %d", g.Size, mine.Size)
	case g.Rank < 0 || g.Rank >= g.Size:
		lost.Cause = fmt.Sprintf("ranks are 0 to %d", g.Size-1)
	case known[g.Rank] != nil:
		lost.Cause = fmt.Sprintf("two processes say they are rank %d: %v, and %v", g.Rank, known[g.Rank], g)
	default:
		if lost.Cause = mine.Identity.differs(g.Identity, mine.Host); lost.Cause == "" {
			return nil
		}
	}
	return lost
}

// differs returns how the identity of another rank differs from that of rank 0; nothing if it
// does not.
func (i Identity) differs(other Identity, host string) string {
	for _, f := range i {
		if slices.Contains(other, f) {
			continue
		}
		theirs := "none"
		for _, o := range other {
			if o.Name == f.Name {
				theirs = o.Value
			}
		}
		if host != "" {
			host = " on " + host
		}
		return fmt.Sprintf("its %s differs: %s, rank 0%s has %s", f.Name, theirs, host, f.Value)
	}
	return ""
}

// Compare ends the group unless all ranks have the same identity: the first rank that differs from
// rank 0 says how, the others wait for its word.
func (g *Group) Compare(ctx context.Context, i Identity) error {
	mine, err := json.Marshal(i)
	if err != nil {
		return err
	}
	all, err := g.Exchange(ctx, "the comparison of the ranks", mine)
	if err != nil {
		return err
	}
	list := make([]Identity, len(all))
	for rank := range all {
		if err := json.Unmarshal(all[rank], &list[rank]); err != nil {
			return err
		}
	}
	for rank, other := range list {
		text := list[0].differs(other, "")
		if text == "" {
			continue
		}
		if rank == g.place.Rank {
			g.Fail(CodeInput, errors.New(text))
		}
		select {
		case <-g.done:
			return g.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// absent returns the error of ranks that did not join in time.
func absent(ctx context.Context, conns []link, strange error) *Lost {
	lost := &Lost{Rank: -1, Code: CodeFailed}
	var names []string
	for rank, c := range conns {
		if c != nil {
			continue
		}
		if lost.Rank < 0 {
			lost.Rank = rank
		}
		if len(names) < 8 {
			names = append(names, fmt.Sprint(rank))
		}
	}
	lost.Cause = fmt.Sprintf("it did not join (missing: rank %s of %d): %v", strings.Join(names, ", "), len(conns), context.Cause(ctx))
	if strange != nil {
		lost.Cause += fmt.Sprintf("; %v", strange)
		if errors.Is(strange, errSecret) {
			lost.Code = CodeInput
		}
	}
	return lost
}

// refuseAll tells processes that joined why the group does not begin.
func refuseAll(conns []link, lost *Lost) {
	for _, c := range conns {
		if c != nil {
			_ = c.send(message{Kind: ended, Lost: lost}) // rank 0 reports the reason in any case
			c.close()
		}
	}
}

// dial connects to rank 0, which may start later, and waits until all ranks have joined.
func (o Options) dial(ctx context.Context, config *tls.Config, mine *greeting) (*Group, error) {
	const shortest, longest = 20 * time.Millisecond, time.Second
	waiting, cancel := context.WithTimeout(ctx, o.Wait)
	defer cancel()
	dialer := tls.Dialer{Config: config}
	for pause := shortest; ; pause = min(2*pause, longest) {
		c, err := dialer.DialContext(waiting, "tcp", o.Place.Address)
		if err == nil {
			return o.greet(ctx, newConn(c), mine)
		}
		if errors.Is(err, errSecret) {
			return nil, &Lost{Rank: mine.Rank, Host: mine.Host, Cause: err.Error(), Code: CodeInput, err: err}
		}
		select {
		case <-waiting.Done():
			return nil, &Lost{Rank: 0, Cause: fmt.Sprintf("it does not answer at %s: %v", o.Place.Address, err), Code: CodeFailed, Gone: true, err: err}
		case <-time.After(pause):
		}
	}
}

// greet waits for rank 0's answer to a hello: a little longer than rank 0 waits, which began
// before, so that all ranks end for the reason that rank 0 tells.
func (o Options) greet(ctx context.Context, c *conn, mine *greeting) (*Group, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Wait+linger)
	defer cancel()
	stop := context.AfterFunc(ctx, c.close)
	defer stop()
	err := c.send(message{Kind: hello, Hello: mine})
	var m message
	if err == nil {
		m, err = c.receive()
	}
	switch {
	case err == nil && m.Kind == joined:
		return newGroup(o.Place, c, o.timing), nil
	case err == nil && m.Lost != nil:
		err = m.Lost
	case ctx.Err() != nil:
		cause := context.Cause(ctx)
		err = &Lost{Rank: mine.Rank, Cause: fmt.Sprintf("other ranks did not join: %v", cause), Code: CodeFailed, err: cause}
	default:
		err = &Lost{Rank: 0, Cause: closedCause, Code: CodeFailed, Gone: true}
	}
	c.close()
	return nil, err
}
