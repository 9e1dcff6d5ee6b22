package services

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strconv"
	"sync"
)

// linked reports whether the nodes of a cluster are connected through links. That needs an address for each pair of
// nodes: on Linux all addresses that begin with 127 work without configuration.
const linked = runtime.GOOS == "linux"

// linkHost returns the host at which a node finds another one.
func linkHost(from, to int) string {
	if from == to || !linked {
		return "127.0.0.1"
	}
	return fmt.Sprintf("127.0.%d.%d", from+1, to+1)
}

func linkAddress(from, to, port int) string {
	return net.JoinHostPort(linkHost(from, to), strconv.Itoa(port))
}

// links are the connections between the nodes of a cluster, each through a proxy, so that a node can be cut off from
// the others while clients still reach it. Its methods are safe for concurrent use.
type links []*link

// connect opens the links from each node to a port of one.
func (l *links) connect(to, port int) error {
	for from := range clusterNodes {
		if from == to || !linked {
			continue
		}
		listener, err := net.Listen("tcp", linkAddress(from, to, port))
		if err != nil {
			return err
		}
		k := &link{from: from, to: to, target: address(port), listener: listener, over: make(chan struct{})}
		k.open = make(chan struct{})
		close(k.open)
		k.running.Go(k.serve)
		*l = append(*l, k)
	}
	return nil
}

// set opens or shuts all links from and to a node.
func (l links) set(node int, open bool) error {
	if len(l) == 0 {
		return fmt.Errorf("cut off a node, which takes Linux: %w", errors.ErrUnsupported)
	}
	for _, k := range l {
		if k.from == node || k.to == node {
			k.set(open)
		}
	}
	return nil
}

func (l *links) close() {
	for _, k := range *l {
		_ = k.listener.Close()
		close(k.over)
	}
	for _, k := range *l {
		k.running.Wait()
	}
}

// link is a connection from one node to another. A shut link keeps connections but passes nothing until it is open
// again, like a network that drops packets.
type link struct {
	from, to int
	target   string
	listener net.Listener
	over     chan struct{}
	running  sync.WaitGroup

	mu   sync.Mutex
	open chan struct{} // closed while it is open
}

func (k *link) set(open bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.open:
		if !open {
			k.open = make(chan struct{})
		}
	default:
		if open {
			close(k.open)
		}
	}
}

// pass waits while the link is shut, and reports whether it still exists.
func (k *link) pass() bool {
	k.mu.Lock()
	open := k.open
	k.mu.Unlock()
	select {
	case <-open:
		return true
	case <-k.over:
		return false
	}
}

func (k *link) serve() {
	for {
		near, err := k.listener.Accept()
		if err != nil {
			return
		}
		k.running.Go(func() { k.carry(near) })
	}
}

// carry copies the data of both ends, and passes on when one of them closes the connection.
func (k *link) carry(near net.Conn) {
	defer near.Close()
	if !k.pass() {
		return
	}
	far, err := net.Dial("tcp", k.target)
	if err != nil {
		return
	}
	ended := make(chan struct{}, 2)
	for _, ends := range [][2]net.Conn{{near, far}, {far, near}} {
		k.running.Go(func() {
			_, _ = io.Copy(passing{ends[1], k}, ends[0])
			k.pass()
			ended <- struct{}{}
		})
	}
	select {
	case <-ended:
	case <-k.over:
	}
	_ = far.Close()
}

// passing writes to one end of a link.
type passing struct {
	io.Writer
	link *link
}

func (p passing) Write(b []byte) (int, error) {
	if !p.link.pass() {
		return 0, net.ErrClosed
	}
	return p.Writer.Write(b)
}
